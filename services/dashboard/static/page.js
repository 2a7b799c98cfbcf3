// What all pages share: they follow the stream, draw its states, and show times in the reader's time zone.

import { element } from "./elements.js";
import { follow } from "./stream.js";

export const find = (id) => document.getElementById(id);

let clockOffset = 0;
export const now = () => Date.now() / 1000 + clockOffset;

// Draws a section again only if its content has changed, so that a selection in it survives.
export function makeRefresh() {
  const drawn = {};
  return (name, content, draw) => {
    const text = JSON.stringify(content);
    if (drawn[name] === text) return;
    drawn[name] = text;
    draw(content);
  };
}

// draw(state) for every new state; tick(now) every second.
export function followLoop(draw, tick = () => {}) {
  follow(find("stream"), find("lost"), {
    state: (state) => {
      draw(state);
      document.documentElement.dataset.ready = "1";
    },
    time: (at) => {
      clockOffset = at - Date.now() / 1000;
      tick(at);
    },
  });
}

// Processes that hang or are down, in the alarm below the headline figures of the Loop page.
export function drawSilent(processes, refresh) {
  const says = (processes ?? []).filter((process) => process.state !== "up").map((process) => process.says);
  refresh("silent", says, () => {
    find("silent").hidden = !says.length;
    find("silent").querySelector("ul").replaceChildren(...says.map((line) => element("li", {}, line)));
  });
}

// The problems of all identities, in the alarm at the top of the page.
export function drawAlarm(state, refresh) {
  const identities = [state.generations, state.signals, ...Object.values(state.learning ?? {})]; // tenants see none about learning
  refresh("alarm", identities.flatMap((identity) => identity.problems), (problems) => {
    find("alarm").hidden = !problems.length;
    if (find("balanced")) find("balanced").hidden = problems.length > 0;
    find("alarm").querySelector("ul").replaceChildren(...problems.map((problem) => element("li", {}, problem)));
  });
}

export function localTimes() {
  for (const time of document.querySelectorAll("time[datetime]")) {
    time.textContent = new Date(time.dateTime).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" });
  }
}

// The address for apps' clients: this one, or the port of inference if that is a process of its own.
export function fillEndpoints() {
  for (const place of document.querySelectorAll(".endpoint")) {
    const { port } = place.dataset;
    place.textContent = `${port ? `${location.protocol}//${location.hostname}:${port}` : location.origin}/v1`;
  }
}
