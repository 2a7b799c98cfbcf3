// The Lift page: the difference between what everybody gets and the hold-out, now, over time and by task.

import { Chart } from "./charts.js";
import { element, fillTable } from "./elements.js";
import { change, count, interval, moment, percent, shortChange, version } from "./format.js";
import { intervalBar } from "./interval.js";
import { find, followLoop, makeRefresh } from "./page.js";

const BASE = 0;
const chart = new Chart(find("points"), {
  height: 240, share: true, format: change, tickFormat: shortChange, empty: "No point yet: release measures the lift while a hold-out has users.",
  series: [{ name: "lift", column: "difference", colour: "--good", band: ["low", "high"] }],
});

const over = (number) => (number === BASE ? "the base" : version(number));
const fact = (name, ...content) => element("div", {}, element("dt", {}, name), element("dd", {}, ...content));

// "people" only where people were drawn.
const UNITS = { user: "people", session: "sessions", answer: "answers" };
function unitName(kinds) {
  const names = Object.keys(kinds).map((kind) => UNITS[kind] ?? kind).sort();
  return names.length ? names.join(" or ") : "people";
}

function drawLift({ lift, live }) {
  find("no-holdout").hidden = lift.version != null;
  find("over-time").hidden = lift.version == null;
  find("lift").hidden = lift.version == null;
  if (lift.version == null) return;
  const units = unitName(lift.unit_kinds);
  const known = lift.difference != null;
  const sentence = known ? `Lift over ${over(lift.version)}: ${shortChange(lift.difference)} ${interval(lift.low, lift.high)}, ${count(lift.num_holdout + lift.num_live)} ${units}` : `Lift over ${over(lift.version)}: not known yet`;
  const doubt = known && lift.low != null && lift.low <= 0 && lift.high >= 0 ? "The interval contains 0: a gain is not proven yet." : "";
  find("lift").replaceChildren(
    element("p", { className: "value" }, sentence),
    ...(known ? [intervalBar({ ...lift, better: "higher", margin: null, verdict: lift.low > 0 ? "proven" : lift.high < 0 ? "worse" : "unknown" }, sentence)] : []),
    element("p", { className: "quiet" }, known ? doubt : `It takes rewarded answers of both: so far ${count(lift.num_holdout)} ${units} of the hold-out and ${count(lift.num_live)} others.`),
    element(
      "dl", { className: "facts-list" },
      fact("Hold-out", `${version(lift.version)} for ${percent(lift.share)} of users`),
      fact("Since", lift.since == null ? "–" : moment(lift.since)),
      fact("Compared with", live == null ? "nothing is live" : `${version(live)} and what was live before it`),
      fact("Compared", `${count(lift.num_holdout)} ${units} of the hold-out`, element("small", {}, ` with ${count(lift.num_live)} others`)),
      fact("Measured", lift.at == null ? "not yet" : moment(lift.at), ...(lift.oldest_at == null ? [] : [element("small", {}, ` by answers since ${moment(lift.oldest_at)}`)])),
      ...((lift.left_out ?? []).length ? [fact("Left out", `the answers of ${lift.left_out.join(", ")}, against all others'`)] : []),
    ),
  );
}

const TASKS = [
  { name: "task", cell: (row) => row.name },
  { name: "lift", number: true, cell: (row) => (row.difference == null ? "–" : change(row.difference)) },
  { name: "interval", number: true, cell: (row) => interval(row.low, row.high) },
];

function drawTasks(tasks) {
  const rows = Object.entries(tasks).map(([name, figures]) => ({ name, ...figures }));
  find("by-task").hidden = rows.length < 1;
  fillTable(find("tasks"), TASKS, rows);
}

const refresh = makeRefresh();
followLoop((state) => {
  const { lift, lift_points: points } = state.rollout;
  refresh("lift", { lift, live: state.live }, drawLift);
  refresh("points", points, (columns) => chart.update(columns));
  refresh("tasks", lift.tasks, drawTasks);
});
