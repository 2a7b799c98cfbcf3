// The Rollout page: the train on the track, its evidence as tiles, and earlier trains.

import { Chart } from "./charts.js";
import { offerTrain } from "./decision.js";
import { element, fillTable } from "./elements.js";
import { change, clock, count, figure, interval, moment, percent, points, seconds, shortChange, version } from "./format.js";
import { intervalBar } from "./interval.js";
import { find, followLoop, makeRefresh, now } from "./page.js";

const RELATIVE = { tokens: figure, seconds, answers: figure }; // differences of these are ratios minus 1; how their means are shown
const NAMES = { reward: "Reward", errors: "Failed", cancelled: "Not waited for", answers: "Answers per unit", truncated: "Cut off", refuses: "Refusals", invalid_tool_call: "Invalid tool calls", empty: "Empty answers", misshapen: "Misshapen answers", heard: "Heard of again", tokens: "Tokens", seconds: "Seconds" };
const VERDICTS = { fine: "no harm seen", proven: "proven", worse: "worse", unknown: "not known yet", missing: "no data", broken: "broken" };
const ENDS = { shipped: "shipped", withdrawn: "withdrawn", revoked: "revoked" };
const STATES = { shadow: "shadow", canary: "canary", stopped: "stopped: no new evidence" };
let current = null;

const chart = new Chart(find("points"), {
  height: 200, format: change, tickFormat: shortChange, empty: "No point yet: release writes one at each look.", share: true,
  series: [{ name: "canary − live", column: "difference", colour: "--accent", band: ["low", "high"] }],
});

const link = (number) => {
  const made = element("a", {}, version(number));
  made.href = `/policies/${number}`;
  return made;
};
const fact = (name, ...content) => element("div", {}, element("dt", {}, name), element("dd", {}, ...content));
const small = (text) => element("small", {}, text);

// The way of a train: shadow, its stages, everybody.
function way(train) {
  const stops = [["shadow", -1], ...train.stages.map((share, place) => [percent(share, 0), place]), ["everybody", train.stages.length]];
  const items = stops.map(([name, place]) => {
    const item = element("li", { className: place < train.stage ? "done" : place === train.stage ? "here" : "" }, name);
    if (place === train.stage) item.setAttribute("aria-current", "step");
    return item;
  });
  return element("ol", { className: `way ${train.state}` }, ...items);
}

function timeLeft(train, at) {
  if (train.state === "stopped") return ["stopped", "nothing advances until evidence arrives again"];
  if (train.state === "shadow") return ["until both have answered", "the same prompts, unseen by users"];
  if (train.stage_until == null) return ["not known", "more units must be heard of first"];
  const left = train.stage_until - at;
  return left <= 0 ? ["any look now", "this stage has what it needs"] : [`${seconds(left)} at least`, `until ${clock(train.stage_until)}`];
}

function drawTrain(at) {
  const { train, held } = current.rollout;
  const tick = find("train").querySelector("[data-moving]");
  if (!train || !tick) return;
  const [left, why] = timeLeft(train, at);
  const moving = {
    stage: seconds(Math.max(0, at - train.stage_at)),
    left: held ? "held" : left,
    why: held ? "an operator holds the arms" : why,
    newest: train.newest_at == null ? "none yet" : `${seconds(Math.max(0, at - train.newest_at))} ago`,
  };
  for (const place of find("train").querySelectorAll("[data-moving]")) {
    const text = moving[place.dataset.moving];
    if (place.textContent !== text) place.textContent = text;
  }
}

const moving = (name) => element("span", { data: { moving: name } });

function layTrain({ train, live, nothing }) {
  if (!train) {
    find("train").replaceChildren(element("p", { className: "value" }, live == null ? "nothing is live" : element("span", {}, link(live), small(" is what everybody gets"))), element("p", { className: "quiet" }, nothing));
    return;
  }
  const stage = train.stage < 0 ? "shadow: users meet it nowhere" : `stage ${train.stage + 1} of ${train.stages.length}`;
  find("train").replaceChildren(
    element("p", { className: "value" }, link(train.version), " ", element("span", { className: `status train-${train.state}` }, STATES[train.state] ?? train.state), small(` to replace ${version(train.blessed)}`)),
    way(train),
    element("p", { className: "verdict" }, train.says || train.reason),
    element("p", { className: "quiet" }, train.promise),
    element(
      "dl", { className: "facts-list" },
      fact("Stage", stage, " ", small(`${percent(train.share, 0)} of users`)),
      fact("In this stage", moving("stage"), " ", small(`since ${clock(train.stage_at)}`)),
      fact("Time left in it", moving("left"), " ", element("small", { data: { moving: "why" } })),
      fact("Withdrawn if unproven", train.deadline == null ? "–" : moment(train.deadline)),
      fact("Compared", `${count(train.num_canary_units)} units of the canary`, " ", small(`with ${count(train.num_control_units)} of live${train.num_stage_units == null ? "" : `; ${count(train.num_stage_units)} new in this stage`}`)),
      fact("Newest evidence", moving("newest")),
      fact("Unit", train.units),
      ...(train.next ? [fact("Next", train.next)] : []),
      ...(train.shadow ? [fact("Shadow", train.shadow)] : []),
      ...(train.left_out ? [fact("Left out", train.left_out)] : []),
    ),
  );
}

function sizes(metric) {
  const show = (value) => (value == null ? "–" : RELATIVE[metric.name] ? RELATIVE[metric.name](value, 1) : percent(value));
  return `canary ${show(metric.canary)} of ${count(metric.num_canary)}, live ${show(metric.live)} of ${count(metric.num_live)}`;
}

const relative = (value) => `${value < 0 ? "−" : "+"}${percent(Math.abs(value))}`;
const amount = (metric, value) => (value == null ? "–" : RELATIVE[metric.name] ? relative(value) : change(value));

function bounds(metric) {
  if (!RELATIVE[metric.name] || (metric.low == null && metric.high == null)) return interval(metric.low, metric.high);
  return `[${metric.low == null ? "−∞" : relative(metric.low)}, ${metric.high == null ? "∞" : relative(metric.high)}]`;
}

function metricTile(metric) {
  const name = NAMES[metric.name] ?? metric.name.replaceAll("_", " ");
  const difference = amount(metric, metric.difference);
  const margin = metric.margin == null ? "none" : RELATIVE[metric.name] ? percent(metric.margin, 0) : points(metric.margin);
  const open = metric.required && metric.needed_units != null && ["unknown", "fine"].includes(metric.verdict);
  const needs = open ? `A proof takes about ${count(metric.needed_units)} units of the canary.` : "";
  const kind = metric.kind === "primary" ? "main metric" : "guardrail";
  return element(
    "article", { className: `metric verdict-${metric.verdict}` },
    element("h3", {}, name, small(metric.task ? `${kind}, ${metric.task}` : kind)),
    element("p", { className: "value" }, difference, element("span", { className: `status is-${metric.verdict}` }, VERDICTS[metric.verdict] ?? metric.verdict)),
    intervalBar(metric, `${name}: difference ${difference}, interval ${bounds(metric)}, margin ${margin}`),
    element("p", { className: "detail" }, `${bounds(metric)}, margin ${margin}`),
    element("p", { className: "detail" }, sizes(metric)),
    element("p", { className: "detail says" }, [metric.says, needs].filter(Boolean).join(" ")),
  );
}

function ratioTile(ratio) {
  const difference = ratio.seen == null || ratio.expected == null ? null : ratio.seen - ratio.expected;
  const metric = { difference, low: ratio.low == null ? null : ratio.low - ratio.expected, high: ratio.high == null ? null : ratio.high - ratio.expected, better: "same", margin: null, verdict: ratio.verdict };
  return element(
    "article", { className: `metric verdict-${ratio.verdict}` },
    element("h3", {}, "Sample ratio", small("is anybody lost on the way?")),
    element("p", { className: "value" }, percent(ratio.seen), element("span", { className: `status is-${ratio.verdict}` }, VERDICTS[ratio.verdict] ?? ratio.verdict)),
    intervalBar(metric, `Sample ratio ${percent(ratio.seen)}, expected ${percent(ratio.expected)}`),
    element("p", { className: "detail" }, `the draw promises ${percent(ratio.expected)}`),
    element("p", { className: "detail" }, `of ${count(ratio.num)} units`),
    element("p", { className: "detail says" }, ratio.verdict === "broken" ? "Units are missing from one arm, so no comparison can be trusted." : ""),
  );
}

const ORDER = { primary: 0, guardrail: 1 };
function drawMetrics(train) {
  const metrics = [...(train?.metrics ?? [])].sort((one, other) => (ORDER[one.kind] ?? 2) - (ORDER[other.kind] ?? 2));
  const tiles = [...metrics.map(metricTile), ...(train?.sample_ratio ? [ratioTile(train.sample_ratio)] : [])];
  find("evidence").hidden = find("history").hidden = !train;
  find("no-metrics").hidden = tiles.length > 0;
  find("metrics").replaceChildren(...tiles);
}

const PAST = [
  { name: "version", cell: (row) => link(row.version) },
  { name: "end", cell: (row) => element("span", { className: `status end-${row.state}` }, ENDS[row.state] ?? row.state) },
  { name: "got as far as", cell: (row) => (row.stage < 0 ? "shadow" : `stage ${Math.min(row.stage + 1, row.num_stages)} of ${row.num_stages}`) },
  { name: "instead of", cell: (row) => version(row.blessed) },
  { name: "left", number: true, cell: (row) => moment(row.started_at) },
  { name: "took", number: true, cell: (row) => (row.ended_at == null ? "–" : seconds(row.ended_at - row.started_at)) },
  { name: "why it ended", className: "reason", cell: (row) => row.reason },
];

function drawPast(past) {
  find("no-past").hidden = past.length > 0;
  find("past").hidden = !past.length;
  fillTable(find("past"), PAST, past);
}

function drawHold({ hold, held_until: until }) {
  find("hold").hidden = !hold;
  find("hold").textContent = hold ? `${hold} ${until == null ? "(until somebody resumes)" : `(until ${moment(until)})`}` : "";
}

function whyNone({ hold, slots_say: lacks, slots }) {
  if (hold) return "No train leaves while the arms are held.";
  if (lacks.length && (!slots.includes("canary") || lacks[0].startsWith("[train]"))) return lacks[0];
  return "No train is under way: the next one leaves when a version that passed the gate waits and users ask. While nobody asks, the track waits.";
}

const refresh = makeRefresh();
const offer = offerTrain(find("actions"), () => current);
followLoop(
  (state) => {
    current = state;
    const { rollout } = state;
    refresh("hold", { hold: rollout.hold, held_until: rollout.held_until }, drawHold);
    refresh("train", { train: rollout.train, live: state.live, nothing: whyNone(rollout) }, layTrain);
    drawTrain(now());
    refresh("metrics", rollout.train, drawMetrics);
    refresh("points", rollout.points, (columns) => chart.update(columns));
    refresh("limits", [...rollout.slots_say, rollout.budget], (lines) => find("limits").replaceChildren(...lines.map((line) => element("li", {}, line))));
    refresh("past", rollout.past, drawPast);
    offer(state);
  },
  (at) => current && drawTrain(at),
);
