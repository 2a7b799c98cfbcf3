// The Loop page: follows the stream of states and draws each section from the newest one.

import { Chart } from "./charts.js";
import { offerRollback } from "./decision.js";
import { drawFreshness, drawLags } from "./flow.js";
import { figure, percent } from "./format.js";
import { drawLoop } from "./loop.js";
import { drawOverview } from "./overview.js";
import { drawAlarm, drawSilent, fillEndpoints, find, followLoop, makeRefresh, now } from "./page.js";

const acceptance = new Chart(find("acceptance"), {
  height: 220, byVersion: true, share: true, format: (value) => percent(value, 0), empty: "No version has been judged or rewarded yet.",
  series: [
    { name: "users", column: "users", colour: "--good", band: ["users_low", "users_high"], num: "users_num" },
    { name: "sentinels", column: "gate", colour: "--late", band: ["gate_low", "gate_high"], num: "gate_num" },
    { name: "refused", column: "refused", colour: "--bad", points: true },
  ],
});

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
  curve("Noise scale", "gradient norm / expected noise", ["", "noise_scale", "--accent"]),
  curve("Divergence by lag", "log ratio per token, by versions", ["0", "divergence/0", "--good"], ["1-2", "divergence/1-2", "--accent"],
    ["3-8", "divergence/3-8", "--warn"], ["9-32", "divergence/9-32", "--late"], ["33+", "divergence/33+", "--bad"]),
  curve("Time of a step", "seconds by stage", ["data", "seconds_data", "--quiet"], ["forward", "seconds_forward", "--accent"],
    ["backward", "seconds_backward", "--warn"], ["optimizer", "seconds_optimizer", "--late"], ["save", "seconds_save", "--bad"],
    ["users first", "seconds_users", "--good"]),
];

let current = null;
let offer = null;
const refresh = makeRefresh();

function draw(state) {
  current = state;
  find("empty").hidden = state.generations.total > 0;
  drawOverview(state, refresh);
  offer ??= offerRollback(find("tiles").firstChild);
  offer(state);
  drawMoving(now());
  drawAlarm(state, refresh);
  drawSilent(state.processes, refresh);
  refresh("freshness", state.freshness, (legs) => drawFreshness(find("freshness"), legs));
  refresh("acceptance", state.acceptance, (columns) => acceptance.update(columns));
  refresh("curves", state.curves, (columns) => curves.forEach((chart) => chart.update(columns)));
}

// Ages grow between two states.
function drawMoving(at) {
  drawLoop(find("loop"), current, at);
  drawLags(find("lags"), current.lags, at);
}

fillEndpoints();
new ResizeObserver(() => current && drawLoop(find("loop"), current, now())).observe(find("loop"));
followLoop(draw, (at) => current && drawMoving(at));
