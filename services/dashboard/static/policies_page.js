// The Policies page: arms, the tree of versions, and a table of versions.

import { decisionButton, mayDecide } from "./decision.js";
import { element, fillTable } from "./elements.js";
import { clock, count, dataSize, percent, points, seconds, times, version } from "./format.js";
import { find, followLoop, makeRefresh } from "./page.js";
import { drawTree } from "./tree.js";

const NUM_VERSIONS = matchMedia("(max-width: 900px)").matches ? 5 : 12;
const ROLE = { live: "what users get", candidate: "what the gate judges", training: "where the trainer continues", canary: "what the train proves", learning: "newest that passed the gate", holdout: "frozen, for the lift", provider: "in front of own versions" };
const LEAST_FOR_RATE = 10;
let current = null;
let showAll = false;

function drawArms(arms) {
  const cards = arms.map((arm) => {
    const number = arm.version == null ? element("span", { className: "quiet" }, "none") : link(arm.version);
    const served = arm.arm === "training" ? "" : `${percent(arm.share, 0)} of users`;
    const since = [served, arm.at == null ? "" : `since ${clock(arm.at)}`, arm.loaded_at == null ? "" : `in an engine since ${clock(arm.loaded_at)}`];
    return element(
      "div", { className: `arm arm-${arm.arm}` },
      element("h3", {}, arm.arm, element("small", {}, ROLE[arm.arm] ?? "")),
      element("p", { className: "value" }, number),
      element("p", { className: "detail" }, since.filter(Boolean).join(" · ")),
      element("p", { className: "detail why" }, arm.writer ? `${arm.writer}: ${arm.reason}` : ""),
    );
  });
  find("arms").replaceChildren(...(cards.length ? cards : [element("p", { className: "quiet" }, "Nothing is assigned yet: millrace up publishes the base as v0 and makes it live.")]));
}

function link(number) {
  const made = element("a", {}, version(number));
  made.href = `/policies/${number}`;
  return made;
}

function accuracy(row) {
  if (row.accuracy == null) return "–";
  const cell = element("span", {}, percent(row.accuracy), row.num_sentinels ? element("small", {}, ` of ${count(row.num_sentinels)}`) : "");
  if (row.best_accuracy != null) {
    const gain = row.accuracy - row.best_accuracy;
    cell.append(element("small", { className: gain < 0 ? "down" : "up" }, ` ${gain < 0 ? "−" : "+"}${points(Math.abs(gain))}`));
  }
  return cell;
}

// A rate of few answers says nothing: then the counts are shown.
function users(row) {
  const [num, accepted] = [row.num_labelled, row.num_accepted];
  if (!num) return "–";
  if (num < LEAST_FOR_RATE) return element("span", { title: `too few for a rate: it needs ${LEAST_FOR_RATE}` }, element("small", {}, `${count(accepted)} of ${count(num)}, too few`));
  return element("span", {}, percent(accepted / num, 0), element("small", {}, ` [${percent(row.accepted_low, 0).slice(0, -2)}, ${percent(row.accepted_high, 0).slice(0, -2)}] of ${count(num)}`));
}

function size(row) {
  if (row.payload_bytes == null) return "–";
  const ratio = row.kind !== "full" ? `${times(row.full_bytes / Math.max(row.payload_bytes, 1))} less` : "full";
  return element("span", {}, dataSize(row.payload_bytes), element("small", {}, ` ${ratio}`));
}

// The gap between tokens during the swap, minus a usual gap: noise can make it negative.
function swapPause(row) {
  const pause = row.gap_seconds ?? row.pause_seconds;
  return pause == null ? "–" : seconds(Math.max(0, pause));
}

const BACK_TO = new Set(["accepted", "base"]);
function decision(row) {
  const { live } = current;
  if (live != null && row.version < live && BACK_TO.has(row.status)) return decisionButton("rollback", row.version, () => current);
  if (live != null && row.version > live && row.status !== "revoked") return decisionButton("promote", row.version, () => current, row.reason ? `The gate said: ${row.reason}.` : "The gate has not judged it.");
  return "";
}

// A revoked version shows why it was revoked and how its samples are treated, then the gate's reason.
function verdict(row) {
  if (!row.revoked) return row.reason || "–";
  return element("span", {}, element("b", {}, `Revoked as ${row.treatment} by ${row.revoked}. `), row.reason);
}

const COLUMNS = [
  { name: "version", cell: (row) => element("span", {}, link(row.version), element("small", {}, row.parent == null ? "" : ` from ${version(row.parent)}`)) },
  { name: "status", cell: (row) => element("span", { className: `status ${row.status.replace(" ", "-")}` }, row.status) },
  { name: "accuracy vs live", number: true, cell: accuracy },
  { name: "users accept", number: true, cell: users },
  { name: "payload", number: true, cell: size },
  { name: "density", number: true, cell: (row) => (row.kind !== "full" ? percent(row.density) : "–") },
  { name: "samples", number: true, cell: (row) => (row.num_samples ? count(row.num_samples) : "–") },
  { name: "swap pause", number: true, cell: (row) => swapPause(row) },
  { name: "published", number: true, cell: (row) => clock(row.created_at) },
  { name: "verdict", className: "reason", cell: verdict },
  ...(mayDecide ? [{ name: "decide", className: "decide", cell: decision }] : []),
];

function drawVersions({ versions }) {
  const shown = showAll ? versions : versions.slice(0, NUM_VERSIONS);
  const rows = shown.map((row) => ({ ...row, className: row.status === "live" ? "is-live" : "" }));
  find("no-versions").hidden = versions.length > 0;
  find("versions").hidden = find("tree").hidden = !versions.length;
  find("all-versions").hidden = shown.length === versions.length;
  find("all-versions").textContent = `Show all ${count(versions.length)} versions`;
  const held = document.activeElement?.getAttribute("aria-label");
  fillTable(find("versions"), COLUMNS, rows);
  // The new table has new buttons: give the keyboard's focus back.
  if (held && document.activeElement === document.body) [...find("versions").querySelectorAll("button")].find((button) => button.getAttribute("aria-label") === held)?.focus();
}

find("all-versions").addEventListener("click", () => {
  showAll = true;
  drawVersions(current);
});

function drawDecisions(decisions) {
  const lines = decisions.map((change) =>
    element("li", {}, element("time", {}, clock(change.at)), element("b", {}, change.arm), ` ${change.version == null ? "cleared" : `→ ${version(change.version)}`} `, element("span", { className: "quiet" }, `${change.writer}: ${change.reason}`)),
  );
  find("decisions").replaceChildren(...(lines.length ? lines : [element("li", { className: "quiet" }, "No arm has been moved yet.")]));
}

const refresh = makeRefresh();
followLoop((state) => {
  current = state;
  refresh("arms", state.arms, drawArms);
  refresh("tree", { versions: state.versions, live: state.live }, ({ versions, live }) => drawTree(find("tree"), versions, live));
  refresh("versions", { versions: state.versions, live: state.live }, drawVersions);
  refresh("decisions", state.decisions, drawDecisions);
});
