// The Loop page: follows the stream of states and draws each section from the newest one.

import { Chart } from "./charts.js";
import { offerRollback } from "./decision.js";
import { element } from "./elements.js";
import { drawFreshness, drawLags } from "./flow.js";
import { count, figure, percent, version } from "./format.js";
import { drawLoop } from "./loop.js";
import { fillEndpoints, find, followLoop, makeRefresh, now } from "./page.js";

const SHARE = [0, 1];

const charts = {
  rates: new Chart(find("rates"), {
    height: 220, format: (value) => figure(value, 1), empty: "Nothing in the last 15 min.",
    series: [
      { name: "generations", column: "generations", colour: "--accent" },
      { name: "signals", column: "signals", colour: "--warn" },
      { name: "experiences", column: "experiences", colour: "--late" },
      { name: "steps", column: "steps", colour: "--quiet", dash: [5, 4] },
    ],
  }),
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
      { name: "live then", column: "best", colour: "--quiet", dash: [5, 4] },
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
const offer = offerRollback(find("tiles").firstChild);

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
  offer(state);
}

function drawAlarm(problems) {
  find("alarm").hidden = !problems.length;
  find("alarm").querySelector("ul").replaceChildren(...problems.map((problem) => element("li", {}, problem)));
}

let current = null;
const refresh = makeRefresh();

function draw(state) {
  current = state;
  find("empty").hidden = state.generations.total > 0;
  drawTiles(state);
  drawMoving(now());
  refresh("alarm", [...state.generations.problems, ...state.signals.problems], drawAlarm);
  refresh("rates", state.rates, (columns) => charts.rates.update(columns));
  refresh("freshness", state.freshness, (legs) => drawFreshness(find("freshness"), legs));
  refresh("rewards", state.rewards, (columns) => charts.rewards.update(columns));
  refresh("gate", state.gate, (columns) => charts.gate.update(columns));
  refresh("curves", state.curves, (columns) => curves.forEach((chart) => chart.update(columns)));
}

// What grows older by itself.
function drawMoving(at) {
  drawLoop(find("loop"), current, at);
  drawLags(find("lags"), current.lags, at);
}

fillEndpoints();
new ResizeObserver(() => current && drawLoop(find("loop"), current, now())).observe(find("loop"));
followLoop(draw, (at) => current && drawMoving(at));
