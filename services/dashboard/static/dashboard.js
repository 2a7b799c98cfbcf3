// The page: follows the stream of states and draws each section from the newest one.

import { Chart } from "./charts.js";
import { element, fillTable } from "./elements.js";
import { bytes, clock, count, figure, percent, seconds, version, words } from "./format.js";
import { drawLoop } from "./loop.js";
import { setUpRollback } from "./rollback.js";
import { follow } from "./stream.js";

const find = (id) => document.getElementById(id);
const SHARE = [0, 1];
const NUM_VERSIONS = matchMedia("(max-width: 900px)").matches ? 5 : 12;

const charts = {
  rewards: new Chart(find("rewards"), {
    height: 220, share: true, range: SHARE, format: (value) => percent(value, 0), empty: "No user's answer has been scored yet.",
    series: [
      { name: "accepted (reward ≥ 0.5)", column: "accept_rate", colour: "--good" },
      { name: "mean reward", column: "reward", colour: "--accent", dash: [5, 4] },
      { name: "labelled at all", column: "labelled", colour: "--quiet" },
    ],
  }),
  gate: new Chart(find("gate"), {
    height: 220, share: true, format: (value) => percent(value, 0), empty: "No version has been judged yet.",
    series: [
      { name: "accepted", column: "accepted", colour: "--good", points: true },
      { name: "refused", column: "refused", colour: "--bad", points: true },
      { name: "best before", column: "best", colour: "--quiet", dash: [5, 4] },
    ],
  }),
};

const curve = (title, unit, ...series) =>
  new Chart(find("curves"), {
    title, unit, height: 130, format: figure, sync: "training", empty: "No step yet.",
    series: series.map(([name, column, colour]) => ({ name, column, colour })),
  });
const curves = [
  curve("Loss", "per token", ["", "loss", "--accent"]),
  curve("Effective sample size", "share of tokens", ["", "ess", "--accent"]),
  curve("KL", "nats per token", ["to behaviour", "k3", "--accent"], ["to base", "anchor_kl", "--warn"]),
  curve("Ratio, largest", "current / behaviour", ["", "ratio_max", "--accent"]),
  curve("Gradient norm", "before clipping", ["", "gradient_norm", "--accent"]),
  curve("Entropy", "nats per token", ["", "entropy", "--accent"]),
];

// Tiles stay where they are and only their text changes, so that the button keeps the keyboard's focus.
function makeTile(name) {
  const [value, detail] = [element("p", { className: "value" }), element("p", { className: "detail" })];
  const root = element("div", { className: "tile" }, element("h2", {}, name), value, detail);
  find("tiles").append(root);
  return (text, note, className = "") => {
    value.textContent = text;
    detail.textContent = note;
    root.className = `tile ${className}`;
    return root;
  };
}

const tiles = {
  live: makeTile("Live"),
  accept: makeTile("Users accept"),
  reward: makeTile("Mean reward"),
  accuracy: makeTile("Sentinel accuracy"),
  trained: makeTile("Trained on"),
  ledger: makeTile("Ledger"),
};
const rollback = setUpRollback(find("rollback"), document.body.dataset, find("tiles").firstChild);

function drawTiles(state) {
  const { headline } = state;
  const base = headline.accuracy_base == null ? "not judged yet" : `base ${percent(headline.accuracy_base)}`;
  const balanced = !state.generations.problems.length && !state.signals.problems.length;
  const labels = headline.num_latest ? `of the last ${count(headline.num_latest)} labelled` : "no labels yet";
  tiles.live(version(state.live), state.candidate == null ? "no candidate" : `${version(state.candidate)} is being judged`);
  tiles.accept(percent(headline.accept_rate), labels);
  tiles.reward(figure(headline.reward, 2), headline.num_latest ? "same answers, 0 to 1" : labels);
  tiles.accuracy(percent(headline.accuracy), base);
  tiles.trained(count(headline.num_trained), `answers; ${count(headline.num_pending)} pending`);
  tiles.ledger(balanced ? "balanced" : "unbalanced", balanced ? "everything has a name" : "see the alarm above", balanced ? "good" : "bad");
  rollback.offer(state);
}

function drawAlarm(problems) {
  find("alarm").hidden = !problems.length;
  find("alarm").querySelector("ul").replaceChildren(...problems.map((problem) => element("li", {}, problem)));
}

function drawIdentity(id, left, identity) {
  const bar = element("div", { className: "bar" });
  const terms = identity.names.map((name, place) => {
    const number = identity.counts[place];
    if (number > 0) {
      const part = element("span", { className: `state-${name}`, title: `${words(name)}: ${count(number)}` });
      part.style.flexGrow = number;
      bar.append(part);
    }
    const term = element("li", { className: number ? "" : "zero" }, element("span", { className: `key state-${name}` }), element("span", { className: "term" }, words(name)), element("b", {}, count(number)));
    return term;
  });
  const sum = identity.counts.reduce((total, number) => total + number, 0);
  const sign = sum !== identity.total ? "≠" : "=";
  find(id).replaceChildren(
    element("p", { className: "total" }, element("b", {}, count(identity.total)), ` ${left} ${sign} ${count(sum)} explained`),
    bar,
    element("ul", {}, ...terms),
  );
}

function drawByVersion(identity) {
  const columns = [
    { name: "version", cell: (row) => version(row.version) },
    { name: "logged", number: true, cell: (row) => count(row.total) },
    ...identity.names.map((name, place) => ({ name: words(name), number: true, cell: (row) => (row.counts[place] ? count(row.counts[place]) : "·") })),
  ];
  fillTable(find("by-version"), columns, identity.versions);
}

function accuracy(row) {
  if (row.accuracy == null) return "–";
  const cell = element("span", {}, percent(row.accuracy));
  if (row.best_accuracy != null) {
    const points = (row.accuracy - row.best_accuracy) * 100;
    cell.append(element("small", { className: points < 0 ? "down" : "up" }, ` ${points < 0 ? "−" : "+"}${Math.abs(points).toFixed(1)} pts`));
  }
  return cell;
}

function size(row) {
  if (row.payload_bytes == null) return "–";
  const times = row.full_bytes / Math.max(row.payload_bytes, 1);
  const ratio = row.kind === "delta" ? `${times.toFixed(times < 10 ? 1 : 0)}× less` : "full";
  return element("span", {}, bytes(row.payload_bytes), element("small", {}, ` ${ratio}`));
}

// The gap between tokens that held the swap, less a usual gap: noise can make it negative.
function swapPause(row) {
  const pause = row.gap_seconds ?? row.pause_seconds;
  return pause == null ? "–" : seconds(Math.max(0, pause));
}

const VERSION_COLUMNS = [
  { name: "version", cell: (row) => element("span", {}, version(row.version), element("small", {}, row.parent == null ? "" : ` from ${version(row.parent)}`)) },
  { name: "status", cell: (row) => element("span", { className: `status ${row.status.replace(" ", "-")}` }, row.status) },
  { name: "accuracy vs best", number: true, cell: accuracy },
  { name: "users accept", number: true, cell: (row) => (row.num_labelled ? element("span", {}, percent(row.num_accepted / row.num_labelled, 0), element("small", {}, ` of ${count(row.num_labelled)}`)) : "–") },
  { name: "payload", number: true, cell: size },
  { name: "density", number: true, cell: (row) => (row.kind === "delta" ? percent(row.density) : "–") },
  { name: "samples", number: true, cell: (row) => (row.num_samples ? count(row.num_samples) : "–") },
  { name: "swap pause", number: true, cell: (row) => swapPause(row) },
  { name: "published", number: true, cell: (row) => clock(row.created_at) },
  { name: "reason", className: "reason", cell: (row) => row.reason || "–" },
];

let showAll = false;
find("all-versions").addEventListener("click", () => {
  showAll = true;
  drawVersions(current.versions);
});

function drawVersions(versions) {
  const shown = showAll ? versions : versions.slice(0, NUM_VERSIONS);
  const rows = shown.map((row) => ({ ...row, className: row.status === "live" ? "is-live" : "" }));
  find("no-versions").hidden = versions.length > 0;
  find("all-versions").hidden = shown.length === versions.length;
  find("all-versions").textContent = `Show all ${count(versions.length)} versions`;
  fillTable(find("versions"), VERSION_COLUMNS, rows);
}

function drawDecisions(decisions) {
  const lines = decisions.map((change) =>
    element("li", {}, element("time", {}, clock(change.at)), element("b", {}, change.arm), ` ${change.version == null ? "cleared" : `→ ${version(change.version)}`} `, element("span", { className: "quiet" }, `${change.writer}: ${change.reason}`)),
  );
  find("decisions").replaceChildren(...(lines.length ? lines : [element("li", { className: "quiet" }, "No arm has been moved yet.")]));
}

let current = null;
let clockOffset = 0;
const now = () => Date.now() / 1000 + clockOffset;

// A section is drawn again only if what it shows has changed: a selection in it survives the rest of the page.
const drawn = {};
function refresh(name, content, draw) {
  const text = JSON.stringify(content);
  if (drawn[name] === text) return;
  drawn[name] = text;
  draw(content);
}

function draw(state) {
  current = state;
  find("empty").hidden = state.generations.total > 0;
  drawTiles(state);
  drawLoop(find("loop"), state, now());
  refresh("alarm", [...state.generations.problems, ...state.signals.problems], drawAlarm);
  refresh("generations", state.generations, (identity) => drawIdentity("generations", "answers logged", identity));
  refresh("signals", state.signals, (identity) => drawIdentity("signals", "signals received", identity));
  refresh("by-version", state.generations, drawByVersion);
  refresh("versions", state.versions, drawVersions);
  refresh("decisions", state.decisions, drawDecisions);
  refresh("rewards", state.rewards, (columns) => charts.rewards.update(columns));
  refresh("gate", state.gate, (columns) => charts.gate.update(columns));
  refresh("curves", state.curves, (columns) => curves.forEach((chart) => chart.update(columns)));
  document.documentElement.dataset.ready = "1";
}

document.querySelector("#empty .endpoint").textContent = `${location.origin}/v1`;
new ResizeObserver(() => current && drawLoop(find("loop"), current, now())).observe(find("loop"));
follow(find("stream"), find("lost"), {
  state: draw,
  time: (at) => {
    clockOffset = at - Date.now() / 1000;
    if (current) drawLoop(find("loop"), current, at);
  },
});
