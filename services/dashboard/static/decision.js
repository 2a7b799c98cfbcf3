// Decisions in two steps: a button names the version; the dialog shows the effects, asks for a reason and confirms.

import { element } from "./elements.js";
import { version } from "./format.js";

const dialog = document.getElementById("decision");
const { csrf, decides } = document.body.dataset;
const [title, what, effects, treatment, problem, reason] = ["#decision-title", ".what", ".effects", ".treatment", ".problem", "#reason"].map((name) => dialog.querySelector(name));
const confirm = dialog.querySelector("button.danger");
let asked = null;

const KINDS = {
  rollback: { verb: "Roll back", consequence: () => "Counting what this would change…" },
  promote: {
    verb: "Promote",
    consequence: (live, to, note) => `Users get ${version(to)} instead of ${version(live)}, against any verdict of the gate. ${note} Requests in flight finish; you can roll back.`,
  },
};

export const mayDecide = decides !== undefined;

// body: the fields of the request, without the reason
function open(kind, body, note = "") {
  const { verb, consequence } = KINDS[kind];
  confirm.disabled = false;
  asked = { kind, body };
  title.textContent = `${verb} to ${version(body.to)}`;
  what.textContent = consequence(body.live, body.to, note);
  confirm.textContent = `${verb} to ${version(body.to)}`;
  problem.hidden = effects.hidden = treatment.hidden = true;
  what.hidden = false;
  reason.value = "";
  treatment.querySelector("[value=evidence]").checked = true;
  dialog.showModal();
  if (kind === "rollback") showEffects(asked);
}

// A rollback can be confirmed only once the dialog shows its effects.
async function showEffects(shown) {
  confirm.disabled = true;
  const answer = await fetch(`/api/rollback?to=${shown.body.to}`).catch(() => null);
  const told = answer ? await answer.json().catch(() => null) : null;
  if (asked !== shown) return;
  if (!answer?.ok) return refuse(told);
  if (told.live !== shown.body.live) return refuse({ error: { message: `${version(shown.body.live)} is no longer live, ${version(told.live)} is; look again.` } });
  what.hidden = true;
  effects.replaceChildren(...told.says.map((line) => element("li", {}, line)));
  effects.hidden = false;
  treatment.hidden = !told.revokes.length;
  for (const place of treatment.querySelectorAll("[data-treatment]")) place.textContent = told.treatments[place.dataset.treatment];
  confirm.disabled = false;
}

function refuse(refusal) {
  problem.textContent = refusal?.error?.message ?? "The server did not answer, so it is not known whether anything changed. Look again.";
  problem.hidden = false;
}

dialog.querySelector("form").addEventListener("submit", async (event) => {
  if (event.submitter?.value !== "confirm") return;
  event.preventDefault();
  confirm.disabled = true;
  const answer = await fetch(`/api/${asked.kind}`, {
    method: "POST",
    headers: { "content-type": "application/json", "x-csrf-token": csrf },
    body: JSON.stringify({ ...asked.body, reason: reason.value, ...(asked.kind === "rollback" ? { treatment: treatment.querySelector(":checked").value } : {}) }),
  }).catch(() => null);
  confirm.disabled = false;
  if (answer?.ok) return dialog.close();
  refuse(answer ? await answer.json().catch(() => null) : null);
});

// A button for a table's row; current() gives the state at the time of the click.
export function decisionButton(kind, to, current, note) {
  const button = element("button", { className: `small ${kind}` }, KINDS[kind].verb);
  button.setAttribute("aria-label", `${KINDS[kind].verb} to ${version(to)}`);
  button.addEventListener("click", () => open(kind, { live: current().live, to }, note));
  return button;
}

// The button beside the live version: a rollback to the last accepted version.
export function offerRollback(tile) {
  const button = element("button", { className: "small" });
  const hint = element("p", { className: "detail" }, "operators can roll back");
  tile.append(mayDecide ? button : hint);
  button.addEventListener("click", () => open("rollback", { live: Number(button.dataset.live), to: Number(button.dataset.to) }));
  return (state) => {
    hint.hidden = button.hidden = state.rollback_to == null;
    button.textContent = `Roll back to ${version(state.rollback_to)}`;
    Object.assign(button.dataset, { live: state.live, to: state.rollback_to });
  };
}

// The buttons of the Rollout page: back to the last accepted version.
export function offerTrain(place, current) {
  const back = element("button", { className: "small" }, "Roll back");
  back.addEventListener("click", () => open("rollback", { live: current().live, to: current().rollback_to }));
  const hint = element("span", { className: "quiet" }, "operators can freeze, pin and roll back");
  place.append(...(mayDecide ? [back] : [hint]));
  return (state) => {
    back.disabled = state.rollback_to == null;
    back.textContent = state.rollback_to == null ? "Roll back" : `Roll back to ${version(state.rollback_to)}`;
  };
}
