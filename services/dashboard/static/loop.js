// The loop as a drawing: stages with their rates, and edges with the records that wait. The layout depends on the width.

import { count, seconds } from "./format.js";
import { shape, text } from "./svg.js";

const LATE_SECONDS = 30;
const BOX = { width: 124, height: 62 };

// Centres of the stages. The text of an edge stands at the middle of the edge plus (dx, dy).
const WIDE = {
  width: 1200,
  height: 226,
  stages: {
    generations: [90, 50], signals: [90, 160], episodes: [292, 105], rewards: [502, 105], training: [712, 105],
    release: [922, 105], live: [1132, 105],
  },
  note: { "generations>episodes": [16, -46], "signals>episodes": [16, 44], default: [0, -12] },
  back: "M1132 136 V214 H8 V50 H22",
  backNote: [600, 206],
};
const NARROW = {
  width: 360,
  height: 668,
  stages: {
    generations: [92, 40], signals: [268, 40], episodes: [180, 150], rewards: [180, 262], training: [180, 374],
    release: [180, 486], live: [180, 598],
  },
  note: { "generations>episodes": [-66, 12], "signals>episodes": [66, 12], default: [62, 0] },
  back: "M118 598 H14 V40 H30",
  backNote: [180, 656],
};

function path([x1, y1], [x2, y2], wide) {
  if (wide) {
    const [from, to] = [x1 + BOX.width / 2, x2 - BOX.width / 2 - 5];
    const middle = (from + to) / 2;
    return `M${from} ${y1} C${middle} ${y1} ${middle} ${y2} ${to} ${y2}`;
  }
  const [from, to] = [y1 + BOX.height / 2, y2 - BOX.height / 2 - 5];
  const middle = (from + to) / 2;
  return `M${x1} ${from} C${x1} ${middle} ${x2} ${middle} ${x2} ${to}`;
}

function waiting(edge, now) {
  if (edge.num_waiting === 0) return ["0 waiting", ""];
  const age = edge.oldest_at == null ? "" : `oldest ${seconds(Math.max(0, now - edge.oldest_at))}`;
  return [`${count(edge.num_waiting)} waiting`, age];
}

function drawEdge(edge, layout, wide, now) {
  const [from, to] = [layout.stages[edge.source], layout.stages[edge.target]];
  const [dx, dy] = layout.note[`${edge.source}>${edge.target}`] ?? layout.note.default;
  const [x, y] = [(from[0] + to[0]) / 2 + dx, (from[1] + to[1]) / 2 + dy];
  const [first, second] = waiting(edge, now);
  const late = edge.num_waiting > 0 && edge.oldest_at != null && now - edge.oldest_at > LATE_SECONDS;
  const name = late ? "edge late" : edge.num_waiting ? "edge busy" : "edge";
  return shape(
    "g",
    { class: name },
    shape("path", { d: path(from, to, wide), "marker-end": "url(#arrow)" }),
    text(x, y, "waiting", first),
    text(x, wide && !dx ? y + 27 : y + 15, "age", second),
  );
}

// A stage is dead if none of its processes is up.
function isDead(stage, processes) {
  const mine = processes.filter((process) => stage.processes.includes(process.process));
  return mine.length > 0 && mine.every((process) => process.state !== "up");
}

function drawStage(stage, layout, processes) {
  const [x, y] = layout.stages[stage.name];
  return shape(
    "g",
    { class: isDead(stage, processes) ? "stage dead" : stage.num_recent ? "stage" : "stage idle" },
    shape("rect", { x: x - BOX.width / 2, y: y - BOX.height / 2, width: BOX.width, height: BOX.height, rx: 8 }),
    text(x, y - 10, "name", stage.name),
    text(x, y + 10, "rate", `${count(stage.num_recent)} /min`),
    text(x, y + 24, "unit", isDead(stage, processes) ? "down" : stage.unit),
  );
}

export function drawLoop(container, state, now) {
  const wide = container.clientWidth >= 720;
  const layout = wide ? WIDE : NARROW;
  const marker = shape(
    "marker",
    { id: "arrow", viewBox: "0 0 8 8", refX: 3, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" },
    shape("path", { d: "M0 0 L8 4 L0 8 z" }),
  );
  const live = state.live == null ? "nothing is live" : `v${state.live} answers`;
  const summary = state.edges.map((edge) => `${edge.source} to ${edge.target}: ${waiting(edge, now).join(" ")}`).join("; ");
  const drawing = shape(
    "svg",
    { viewBox: `0 0 ${layout.width} ${layout.height}`, role: "img", "aria-label": summary, class: wide ? "wide" : "narrow" },
    shape("defs", {}, marker),
    ...(state.is_fronted ? [] : [shape("g", { class: "edge back" }, shape("path", { d: layout.back, "marker-end": "url(#arrow)" }), text(...layout.backNote, "waiting", live))]),
    ...state.edges.map((edge) => drawEdge(edge, layout, wide, now)),
    ...state.stages.map((stage) => drawStage(stage, layout, state.processes ?? [])),
  );
  container.replaceChildren(drawing);
}
