// Lines over time or over versions, drawn by uPlot (a global of its script). Colours come from the style sheet, so that both themes work.

import { clock, count, version } from "./format.js";
import { element } from "./elements.js";

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
// As many decimals as the step has; on the time axis the date, once the chart spans more than a day.
const round = (ticks) => {
  const step = ticks.length > 1 ? ticks[1] - ticks[0] : 1;
  let decimals = 0;
  const whole = (value) => value > 0.99 && Math.abs(value - Math.round(value)) < 0.01;
  while (decimals < 6 && !whole(step * 10 ** decimals)) decimals += 1;
  return ticks.map((tick) => tick.toFixed(decimals));
};
const times = (ticks) => {
  const long = ticks.at(-1) - ticks[0] > 86400;
  const style = long ? { day: "numeric", month: "short" } : { hour: "2-digit", minute: "2-digit", ...(ticks[1] - ticks[0] < 60 ? { second: "2-digit" } : {}) };
  return ticks.map((tick) => new Date(tick * 1000).toLocaleString("en-GB", style));
};
const SECONDS_SHOWN = 300;
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400, 172800, 604800, 2592000];
// Where `at` are versions: whole numbers only.
const VERSION_STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000];
const versions = (ticks) => ticks.map((tick) => version(tick));
const BAND_ALPHA = "2e";
const WHISKER_APART = 5;
const faint = (value) => ({ stroke: value, width: 1 });

export class Chart {
  // options: title, unit, format(value), tickFormat(value) if the axis needs it shorter, share (the values are shares), height, range [low, high] or none, empty (a sentence), sync (a name) or none,
  // byVersion (`at` are versions), series: [{ name, column, colour, dash, points, band: [low column, high column] or none, num: column or none }]
  constructor(container, options) {
    this.options = options;
    this.columns = { at: [] };
    this.readouts = options.series.map((series) => element("output", {}));
    const names = options.series.map((series, index) =>
      element("span", { className: series.name ? `series ${series.colour.slice(2)}` : "only" }, series.name, " ", this.readouts[index]),
    );
    this.when = element("span", { className: "when" });
    const title = options.title ? [element("h3", {}, options.title, element("small", {}, options.unit ?? ""))] : [];
    this.canvas = element("div", { className: "canvas" });
    this.empty = element("p", { className: "nothing" }, options.empty);
    this.root = element("figure", {}, element("figcaption", {}, ...title, ...names, this.when), this.canvas, this.empty);
    container.append(this.root);
    this.canvas.style.height = `${options.height}px`;
    new ResizeObserver(() => this.resize()).observe(this.canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.rebuild());
  }

  update(columns) {
    this.columns = columns;
    this.empty.hidden = columns.at.length > 0;
    if (!columns.at.length) return;
    if (!this.plot) this.rebuild();
    else this.plot.setData(this.data());
    this.read(null);
  }

  data() {
    return [this.columns.at, ...this.options.series.map((series) => this.columns[series.column]), ...this.banded().flatMap((series) => series.band.map((column) => this.columns[column]))];
  }

  banded() {
    return this.options.series.filter((series) => series.band);
  }

  // The bounds are series of their own, which only their band shows: lines have an area, versions have whiskers.
  bands() {
    const first = this.options.series.length + 1;
    return this.banded().map((series, place) => ({ series: [first + 2 * place + 1, first + 2 * place], fill: `${colour(series.colour)}${BAND_ALPHA}` }));
  }

  whiskers(plot) {
    const { ctx } = plot;
    this.banded().forEach((series, place) => {
      const [low, high] = series.band.map((column) => this.columns[column]);
      ctx.strokeStyle = colour(series.colour);
      ctx.lineWidth = devicePixelRatio;
      this.columns.at.forEach((at, index) => {
        if (low[index] == null) return;
        const x = plot.valToPos(at, "x", true) + place * WHISKER_APART * devicePixelRatio;
        ctx.beginPath();
        ctx.moveTo(x, plot.valToPos(low[index], "y", true));
        ctx.lineTo(x, plot.valToPos(high[index], "y", true));
        ctx.stroke();
      });
    });
  }

  resize() {
    const width = this.canvas.clientWidth;
    if (this.plot && width && width !== this.plot.width) this.plot.setSize({ width, height: this.options.height });
  }

  rebuild() {
    this.plot?.destroy();
    if (!this.columns.at.length) return;
    const [ink, line] = [colour("--quiet"), colour("--line")];
    const axis = { stroke: ink, grid: faint(line), ticks: faint(line), font: "11px system-ui, sans-serif" };
    const { range, share, format, tickFormat, sync, byVersion } = this.options;
    const along = byVersion
      ? { incrs: VERSION_STEPS, space: 40, values: (_plot, ticks) => versions(ticks) }
      : { incrs: STEPS, space: (_plot, _axis, from, to) => (to - from < SECONDS_SHOWN ? 74 : 52), values: (_plot, ticks) => times(ticks) };
    this.plot = new uPlot(
      {
        width: this.canvas.clientWidth || 300,
        height: this.options.height,
        padding: [8, 28, 0, 0],
        legend: { show: false },
        cursor: { drag: { x: false, y: false }, ...(sync ? { sync: { key: sync, scales: ["x", null] } } : {}) },
        scales: { x: { time: !byVersion }, y: range ? { range: () => range } : {} },
        axes: [
          { ...axis, ...along, size: 30 },
          { ...axis, space: 28, size: 56, values: (_plot, ticks) => (share ? ticks.map((tick) => (tickFormat ?? format)(tick)) : round(ticks)) },
        ],
        series: [
          {},
          ...this.options.series.map((series) => ({
            stroke: colour(series.colour),
            width: series.points ? 0 : 1.6,
            dash: series.dash,
            spanGaps: true,
            points: series.points
              ? { show: true, size: 8, fill: colour(series.colour), stroke: colour(series.colour) }
              : byVersion
                ? { show: true, size: 4, fill: colour(series.colour) }
                : { show: this.columns.at.length < 2 },
          })),
          ...this.banded().flatMap((series) => series.band.map(() => ({ stroke: "transparent", width: 0, spanGaps: true, points: { show: false } }))),
        ],
        bands: byVersion ? [] : this.bands(),
        hooks: { setCursor: [(plot) => this.read(plot.cursor.idx)], draw: byVersion ? [(plot) => this.whiskers(plot)] : [] },
      },
      this.data(),
      this.canvas,
    );
  }

  // Shows the values under the cursor, or the newest ones.
  read(index) {
    const { at } = this.columns;
    this.options.series.forEach((series, place) => {
      const values = this.columns[series.column] ?? [];
      const shown = index ?? values.findLastIndex((item) => item != null);
      const bounds = (series.band ?? []).map((column) => this.columns[column]?.[shown]);
      const interval = bounds.length && bounds.every((bound) => bound != null) ? ` [${bounds.map(this.options.tickFormat ?? this.options.format).join(", ")}]` : "";
      const num = series.num && values[shown] != null ? ` of ${count(this.columns[series.num]?.[shown])}` : "";
      this.readouts[place].textContent = `${this.options.format(values[shown])}${interval}${num}`;
    });
    this.when.textContent = index == null || at[index] == null ? "" : this.options.byVersion ? version(at[index]) : clock(at[index]);
  }
}
