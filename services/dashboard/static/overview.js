// What the Loop page and a tenant's page have in common: headline figures, rates, and what users say.

import { Chart } from "./charts.js";
import { element } from "./elements.js";
import { figure, percent } from "./format.js";
import { find } from "./page.js";

const steps = { name: "steps", column: "steps", colour: "--quiet", dash: [5, 4] };
const gate = { name: "sentinels right (gate)", column: "gate", colour: "--late" };
const charts = {
  rates: new Chart(find("rates"), {
    height: 220, format: (value) => figure(value, 1), empty: "Nothing in the last 15 min.",
    series: [
      { name: "generations", column: "generations", colour: "--accent" },
      { name: "signals", column: "signals", colour: "--warn" },
      { name: "experiences", column: "experiences", colour: "--late" },
      ...(find("loop") ? [steps] : []), // all tenants share the trainer
    ],
  }),
  rewards: new Chart(find("rewards"), {
    height: 220, share: true, range: [0, 1], format: (value) => percent(value, 0), empty: "No user's answer has been scored yet.",
    series: [
      { name: "accepted (reward ≥ 0.5)", column: "accept_rate", colour: "--good", band: ["accept_low", "accept_high"], num: "num" },
      { name: "mean reward", column: "reward", colour: "--accent", dash: [5, 4] },
      { name: "labelled at all", column: "labelled", colour: "--quiet" },
      ...(find("loop") ? [gate] : []), // all tenants share the sentinels
    ],
  }),
};

// Tiles stay where they are and only their text changes, so that a button in one keeps the keyboard's focus.
function drawTiles(tiles) {
  const parts = () => [element("h2"), element("p", { className: "value" }), element("p", { className: "detail" })];
  tiles.forEach(({ name, value, detail, mood }, place) => {
    const tile = find("tiles").children[place] ?? find("tiles").appendChild(element("div", {}, ...parts()));
    tile.className = `tile ${mood}`;
    [name, value, detail].forEach((text, part) => (tile.children[part].textContent = text));
  });
}

export function drawOverview(state, refresh) {
  refresh("tiles", state.tiles, drawTiles);
  refresh("rates", state.rates, (columns) => charts.rates.update(columns));
  refresh("rewards", state.rewards, (columns) => charts.rewards.update(columns));
}
