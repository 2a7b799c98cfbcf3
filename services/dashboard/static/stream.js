// Follows the server's events, reports when they stop, and reconnects.

import { clock } from "./format.js";

const SILENCE_MILLISECONDS = 6000;
const RETRY_MILLISECONDS = 2000;

export function follow(pill, banner, handlers) {
  let lastHeard = Date.now();
  let source = null;
  let silent = []; // processes that hang or are down: "live" would be a lie

  const show = (name, sentence) => {
    const said = name === "live" && silent.length ? `${silent.length} down` : name;
    if (pill.textContent !== said) pill.textContent = said;
    document.documentElement.dataset.stream = name;
    document.documentElement.dataset.processes = silent.length ? "down" : "up";
    banner.hidden = !sentence;
    if (banner.textContent !== sentence) banner.textContent = sentence;
  };
  const lost = () =>
    show("lost", `Connection lost. You see the state of ${clock(lastHeard / 1000)}; trying again every ${RETRY_MILLISECONDS / 1000} s.`);

  const listen = () => {
    source = new EventSource("/events");
    const on = (name, handle) =>
      source.addEventListener(name, (event) => {
        lastHeard = Date.now();
        handle(JSON.parse(event.data));
      });
    on("state", (state) => {
      silent = (state.processes ?? []).filter((process) => process.state !== "up");
      show("live", "");
      handlers.state(state);
    });
    on("time", handlers.time);
    on("fault", (message) => show("fault", `The server cannot read its state: ${message}`));
    source.addEventListener("open", () => show("live", ""));
    source.addEventListener("error", retry);
  };

  // We reconnect ourselves: the browser gives up after one refusal, and an ended session needs the sign-in form.
  const retry = () => {
    source.close();
    lost();
    setTimeout(async () => {
      const answer = await fetch("/api/state").catch(() => null);
      if (answer?.status === 401) location.assign("/");
      else listen();
    }, RETRY_MILLISECONDS);
  };

  // A page that the browser keeps for its Back button must not keep one of its few connections to the server.
  addEventListener("pagehide", () => source.close());
  addEventListener("pageshow", (event) => event.persisted && listen());
  setInterval(() => Date.now() - lastHeard > SILENCE_MILLISECONDS && source.readyState === EventSource.OPEN && lost(), 1000);
  listen();
}
