// Decisions in two steps: a button names the version; the dialog shows the effects, asks for a reason and confirms.

import { element } from "./elements.js";
import { version } from "./format.js";

const dialog = document.getElementById("decision");
const { csrf, decides } = document.body.dataset;
const [title, what, effects, treatment, duration, problem, reason] = ["#decision-title", ".what", ".effects", ".treatment", ".duration", ".problem", "#reason"].map((name) => dialog.querySelector(name));
const confirm = dialog.querySelector("button.danger");
let asked = null;

// long: a duration can be given; needed: it must be.
const KINDS = {
  rollback: {
    name: (body) => (body.live == null ? `Roll back to ${version(body.to)}` : `Roll back ${version(body.live)} to ${version(body.to)}`),
    consequence: () => "Counting what this would change…",
    preview: (body) => `/api/rollback?to=${body.to}`,
  },
  withdraw: {
    name: (body) => `Withdraw ${version(body.version)}`,
    consequence: (body) => `The train of ${version(body.version)} ends: its users get what everybody gets, and it does not depart again by itself. It is not revoked, no sample is lost, and it can still be promoted. The next version that passed the gate departs.`,
  },
  revoke: {
    name: (body) => `Revoke ${version(body.version)}`,
    consequence: () => "Counting what this would change…",
    preview: (body) => `/api/revoke?version=${body.version}`,
  },
  promote: {
    name: (body) => `Promote to ${version(body.to)}`,
    consequence: (body, note) => `Users get ${version(body.to)} instead of ${version(body.live)}, against any verdict of the gate. ${note} Requests in flight finish; you can roll back.`,
  },
  freeze: {
    name: () => "Freeze the arms",
    consequence: () => "Every arm stays as it is: the gate waits, the train stands still, shares do not grow. Users of the canary keep it. A rollback still goes through. No sample is lost; versions that are cut meanwhile wait.",
    long: true,
  },
  pin: {
    name: (body) => `Pin ${version(body.version)}`,
    consequence: (body) => `Everybody gets ${version(body.version)}: a running train ends without a verdict, the learning arm is emptied, and nothing moves until the end. No version is revoked and no sample is lost. People of a hold-out keep their version.`,
    long: true,
    needed: true,
  },
  resume: { name: () => "Resume", consequence: () => "The arms stay where they are, and gate and train go on from there." },
};

export const mayDecide = decides !== undefined;

// body: the fields of the request, without reason and duration
function open(kind, body, note = "") {
  const { name, consequence, preview, long, needed } = KINDS[kind];
  confirm.disabled = false;
  asked = { kind, body };
  title.textContent = confirm.textContent = name(body);
  what.textContent = consequence(body, note);
  problem.hidden = effects.hidden = treatment.hidden = true;
  what.hidden = false;
  duration.hidden = !long;
  duration.querySelector("[value='']").disabled = Boolean(needed);
  duration.querySelector("select").value = needed ? "7200" : "";
  reason.value = "";
  treatment.querySelector("[value=evidence]").checked = true;
  dialog.showModal();
  if (preview) showEffects(asked);
}

function chosen() {
  if (KINDS[asked.kind].preview) return { treatment: treatment.querySelector(":checked").value };
  const seconds = duration.querySelector("select").value;
  return KINDS[asked.kind].long && seconds ? { seconds: Number(seconds) } : {};
}

// What revokes versions can be confirmed only once the dialog shows its effects.
async function showEffects(shown) {
  confirm.disabled = true;
  const answer = await fetch(KINDS[shown.kind].preview(shown.body)).catch(() => null);
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
    body: JSON.stringify({ ...asked.body, reason: reason.value, ...chosen() }),
  }).catch(() => null);
  confirm.disabled = false;
  if (answer?.ok) return dialog.close();
  refuse(answer ? await answer.json().catch(() => null) : null);
});

// A button for a table's row; current() gives the state at the time of the click.
export function decisionButton(kind, to, current, note) {
  const button = element("button", { className: `small ${kind}` }, kind === "rollback" ? "Roll back" : "Promote");
  button.setAttribute("aria-label", KINDS[kind].name({ to }));
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

// The buttons of the Rollout page: hold the arms or let them go, pin what is live, reject the canary, go back from the live version.
export function offerTrain(place, current) {
  if (!mayDecide) {
    place.append(element("span", { className: "quiet" }, "operators can freeze, pin, reject the canary and roll back"));
    return () => {};
  }
  const make = (name, decide, calm = true) => {
    const button = element("button", { className: calm ? "small calm" : "small" }, name);
    button.addEventListener("click", decide);
    return button;
  };
  const freeze = make("Freeze", () => open("freeze", {}));
  const pin = make("Pin", () => open("pin", { version: current().live, live: current().live }));
  const resume = make("Resume", () => open("resume", {}));
  const canary = () => current().rollout.train?.version;
  const withdraw = make("Withdraw the canary", () => open("withdraw", { version: canary() }));
  const revoke = make("Revoke the canary", () => open("revoke", { version: canary(), live: current().live }), false);
  const back = make("Roll back", () => open("rollback", { live: current().live, to: current().rollback_to }), false);
  place.append(freeze, pin, resume, withdraw, revoke, back);
  return (state) => {
    const { held, train } = state.rollout;
    withdraw.hidden = revoke.hidden = !train;
    withdraw.textContent = `Withdraw the canary ${version(train?.version)}`;
    revoke.textContent = `Revoke the canary ${version(train?.version)}`;
    resume.hidden = !held;
    freeze.hidden = Boolean(held);
    pin.hidden = Boolean(held) || state.live == null;
    pin.textContent = `Pin ${version(state.live)}`;
    back.disabled = state.rollback_to == null;
    back.textContent = state.rollback_to == null ? "Roll back" : `Roll back live ${version(state.live)} to ${version(state.rollback_to)}`;
  };
}
