// A tenant's own page: follows the stream of its states.

import { Chart } from "./charts.js";
import { element } from "./elements.js";
import { count, figure, percent, version } from "./format.js";
import { find, followLoop, makeRefresh } from "./page.js";

const charts = {
  rates: new Chart(find("rates"), {
    height: 220, format: (value) => figure(value, 1), empty: "Nothing in the last 15 min.",
    series: [
      { name: "generations", column: "generations", colour: "--accent" },
      { name: "signals", column: "signals", colour: "--warn" },
      { name: "experiences", column: "experiences", colour: "--late" },
    ],
  }),
  rewards: new Chart(find("rewards"), {
    height: 220, share: true, range: [0, 1], format: (value) => percent(value, 0), empty: "No user's answer has been scored yet.",
    series: [
      { name: "accepted (reward ≥ 0.5)", column: "accept_rate", colour: "--good" },
      { name: "mean reward", column: "reward", colour: "--accent", dash: [5, 4] },
      { name: "labelled at all", column: "labelled", colour: "--quiet" },
    ],
  }),
};

function tile(name, value, detail) {
  const parts = [element("h2", {}, name), element("p", { className: "value" }, value), element("p", { className: "detail" }, detail)];
  return element("div", { className: "tile" }, ...parts);
}

function drawTiles({ headline, live, generations, signals }) {
  const labels = headline.num_latest ? `of the last ${count(headline.num_latest)} labelled` : "no labels yet";
  find("tiles").replaceChildren(
    tile("Live", version(live), "what answers your users"),
    tile("Users accept", percent(headline.accept_rate), labels),
    tile("Mean reward", figure(headline.reward, 2), headline.num_latest ? "same answers, 0 to 1" : labels),
    tile("Trained on", count(headline.num_trained), `answers; ${count(headline.num_pending)} pending`),
    tile("Answers", count(generations.total), "logged"),
    tile("Signals", count(signals.total), "received"),
  );
}

const refresh = makeRefresh();
followLoop((state) => {
  refresh("tiles", [state.headline, state.live, state.generations.total, state.signals.total], () => drawTiles(state));
  refresh("rates", state.rates, (columns) => charts.rates.update(columns));
  refresh("rewards", state.rewards, (columns) => charts.rewards.update(columns));
});
