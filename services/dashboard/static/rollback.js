// Rolling back, in two steps: the button says where to, the dialog asks for a reason and confirms.

import { element } from "./elements.js";
import { version } from "./format.js";

export function setUpRollback(dialog, { csrf, role }, tile) {
  const [what, problem, reason] = [dialog.querySelector(".what"), dialog.querySelector(".problem"), dialog.querySelector("#reason")];
  const confirm = dialog.querySelector("button.danger");
  let asked = null;

  const open = (live, to) => {
    asked = { live, to };
    what.textContent =
      `Users get ${version(to)} instead of ${version(live)}, training goes on from ${version(to)}, and the candidate, if any, is dropped. ` +
      "Requests in flight finish. Nothing is deleted.";
    confirm.textContent = `Roll back to ${version(to)}`;
    problem.hidden = true;
    reason.value = "";
    dialog.showModal();
  };

  dialog.querySelector("form").addEventListener("submit", async (event) => {
    if (event.submitter?.value !== "confirm") return;
    event.preventDefault();
    confirm.disabled = true;
    const answer = await fetch("/api/rollback", {
      method: "POST",
      headers: { "content-type": "application/json", "x-csrf-token": csrf },
      body: JSON.stringify({ ...asked, reason: reason.value }),
    }).catch(() => null);
    confirm.disabled = false;
    if (answer?.ok) return dialog.close();
    const refusal = answer ? await answer.json().catch(() => null) : null;
    problem.textContent = refusal?.error?.message ?? "The server did not answer; nothing is known to have changed. Look again.";
    problem.hidden = false;
  });

  const button = element("button", { className: "small" });
  const hint = element("p", { className: "detail" }, "operators can roll back");
  tile.append(role === "operator" ? button : hint);
  button.addEventListener("click", () => open(Number(button.dataset.live), Number(button.dataset.to)));

  return {
    offer(state) {
      hint.hidden = button.hidden = state.rollback_to == null;
      button.textContent = `Roll back to ${version(state.rollback_to)}`;
      Object.assign(button.dataset, { live: state.live, to: state.rollback_to });
    },
  };
}
