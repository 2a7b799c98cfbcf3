// The Ledger page: all identities, term by term, and records that could not be processed.

import { element, fillTable } from "./elements.js";
import { clock, count, dataSize, version, words } from "./format.js";
import { drawAlarm, find, followLoop, makeRefresh } from "./page.js";

function drawIdentity(id, left, identity) {
  const bar = element("div", { className: "bar" });
  const terms = identity.names.map((name, place) => {
    const number = identity.counts[place];
    if (number > 0) {
      const part = element("span", { className: `state-${name}`, title: `${words(name)}: ${count(number)}` });
      part.style.flexGrow = number;
      bar.append(part);
    }
    const key = element("span", { className: `key state-${name}` });
    return element("li", { className: number ? "" : "zero" }, key, element("span", { className: "term" }, words(name)), element("b", {}, count(number)));
  });
  const sum = identity.counts.reduce((total, number) => total + number, 0);
  const sign = sum !== identity.total ? "≠" : "=";
  find(id).replaceChildren(
    element("p", { className: sum === identity.total ? "total" : "total problem" }, element("b", {}, count(identity.total)), ` ${left} ${sign} ${count(sum)} explained`),
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
  find("no-answers").hidden = identity.versions.length > 0;
  fillTable(find("by-version"), columns, identity.versions);
}

const LEARNING = { monitors: "answers counted by monitors", corrections: "later rewards", shadow_prompts: "prompts wanted for shadows" };

const DEAD = [
  { name: "read by", cell: (row) => row.consumer_group },
  { name: "place", cell: (row) => `${row.topic}/${row.partition} at ${count(row.offset)}` },
  { name: "size", number: true, cell: (row) => dataSize(row.num_bytes) },
  { name: "when", number: true, cell: (row) => clock(row.at) },
  { name: "reason", className: "reason", cell: (row) => row.reason },
];

function drawDead(letters) {
  find("no-dead").hidden = letters.length > 0;
  find("dead").hidden = !letters.length;
  fillTable(find("dead"), DEAD, letters);
}

const refresh = makeRefresh();
followLoop((state) => {
  drawAlarm(state, refresh);
  refresh("generations", state.generations, (identity) => drawIdentity("generations", "answers logged", identity));
  refresh("signals", state.signals, (identity) => drawIdentity("signals", "signals received", identity));
  refresh("by-version", state.generations, drawByVersion);
  for (const [kind, left] of Object.entries(LEARNING)) {
    if (state.learning) refresh(kind, state.learning[kind], (identity) => drawIdentity(kind, left, identity));
  }
  if (state.dead_letters) refresh("dead", state.dead_letters, drawDead); // tenants have none
});
