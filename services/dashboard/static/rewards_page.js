// The server renders the Rewards page; this script draws its charts from the columns in the page.

import { Chart } from "./charts.js";
import { figure, percent } from "./format.js";
import { find } from "./page.js";
import "./words_page.js";

const COLOURS = ["--good", "--warn", "--late", "--filtered", "--bad", "--stale"];
const HEIGHT = 220;
const ROOM = 1.08;

function drawRewards(container) {
  const columns = JSON.parse(container.dataset.columns);
  const parts = JSON.parse(container.dataset.parts).slice(0, COLOURS.length);
  const series = parts.map(([column, name], place) => ({ name, column, colour: COLOURS[place] }));
  new Chart(container, {
    height: HEIGHT, byVersion: true, format: (value) => figure(value, 2), empty: "No version's answers have been scored yet.",
    series: [{ name: "reward", column: "reward", colour: "--accent" }, ...series],
  }).update(columns);
}

function drawShares(container) {
  const columns = JSON.parse(container.dataset.columns);
  const names = { null: "no reward by a fault", model_fault: "model's fault", unlabelled: "unlabelled" };
  const most = Math.max(0.01, ...Object.keys(names).flatMap((name) => columns[name] ?? []));
  new Chart(container, {
    height: HEIGHT, byVersion: true, share: true, range: [0, Math.min(1, most * ROOM)], format: (value) => percent(value), empty: "No version's answers have been scored yet.",
    series: [
      { name: names.null, column: "null", colour: "--bad" },
      { name: names.model_fault, column: "model_fault", colour: "--warn" },
      { name: names.unlabelled, column: "unlabelled", colour: "--quiet", dash: [5, 4] },
    ],
  }).update(columns);
}

if (find("by-version")) {
  drawRewards(find("rewards"));
  drawShares(find("shares"));
}
document.documentElement.dataset.drawn = "1";
