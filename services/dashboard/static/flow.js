// Freshness and lag: the delay of each stage, and the records that wait for it.

import { element } from "./elements.js";
import { count, seconds } from "./format.js";

const LATE_SECONDS = 30;
const [SHORTEST, DECADE] = [0.01, Math.LN10];
const NUM_TICKS = 4;

export function drawFreshness(container, legs) {
  const longest = Math.max(1, ...legs.map((leg) => leg.p95 ?? 0));
  const span = Math.max(1, Math.ceil(Math.log(longest / SHORTEST) / DECADE));
  const share = (value) => Math.min(1, Math.max(0, Math.log(Math.max(value, SHORTEST) / SHORTEST) / DECADE / span));
  if (!legs.some((leg) => leg.number)) {
    container.replaceChildren(element("p", { className: "quiet" }, "No answer has completed the loop yet: that takes a signal, a score, a training step and a version that goes live."));
    return;
  }
  const rows = legs.map((leg) => {
    const bar = element("span", { className: "range" });
    if (leg.number) {
      bar.style.marginLeft = `${share(leg.p50) * 100}%`;
      bar.style.width = `${Math.max(0.01, share(leg.p95) - share(leg.p50)) * 100}%`;
    }
    const track = element("td", { className: "track", title: leg.number ? `${leg.title}: half within ${seconds(leg.p50)}, 95 % within ${seconds(leg.p95)}, of ${count(leg.number)}` : "" }, bar);
    const name = element("th", {}, leg.title);
    name.scope = "row";
    return element("tr", { className: leg.name === "total" ? "total" : "" }, name, element("td", { className: "number" }, seconds(leg.p50)), element("td", { className: "number" }, seconds(leg.p95)), track);
  });
  const step = Math.max(1, Math.ceil(span / NUM_TICKS));
  const ticks = [];
  for (let power = 0; power <= span; power += step) {
    const tick = element("span", {}, seconds(SHORTEST * 10 ** power));
    tick.style.left = `${(power / span) * 100}%`;
    ticks.push(tick);
  }
  const heads = ["stage", "p50", "p95"].map((name, place) => element("th", { className: place ? "number" : "" }, name));
  for (const head of heads) head.scope = "col";
  container.replaceChildren(
    element("table", { className: "freshness" }, element("thead", {}, element("tr", {}, ...heads, element("td", { className: "axis" }, ...ticks))), element("tbody", {}, ...rows)),
  );
}

function waiting(lag, now) {
  if (lag.num_waiting == null) return "the trainer keeps its positions in its checkpoint";
  if (!lag.num_waiting) return "nothing waits";
  return `${count(lag.num_waiting)} wait${lag.oldest_at == null ? "" : `, oldest ${seconds(Math.max(0, now - lag.oldest_at))}`}`;
}

function partition(row, topic) {
  const wait = row.next_offset == null ? null : row.end - row.next_offset;
  const place = row.next_offset == null ? `end ${count(row.end)}` : `position ${count(row.next_offset)} of ${count(row.end)}`;
  const shown = wait == null ? `ends at ${count(row.end)}` : count(wait);
  return element("li", { className: wait ? "waits" : "", title: `${topic}/${row.partition}: ${place}` }, element("span", { className: "part" }, `p${row.partition}`), ` ${shown}`);
}

export function drawLags(container, lags, now) {
  const rows = lags.map((lag) => {
    const late = lag.oldest_at != null && now - lag.oldest_at > LATE_SECONDS;
    return element(
      "div", { className: late ? "lag late" : "lag" },
      element("p", { className: "stage" }, element("b", {}, lag.group), element("span", { className: "quiet" }, ` reads ${lag.topic}`)),
      element("p", { className: "sum" }, waiting(lag, now)),
      element("ol", { className: "parts" }, ...lag.partitions.map((row) => partition(row, lag.topic))),
    );
  });
  container.replaceChildren(...rows);
}
