// What every page does alike: follows the stream, shows its state, prints the server's times in the reader's own.

import { follow } from "./stream.js";

export const find = (id) => document.getElementById(id);

let clockOffset = 0;
export const now = () => Date.now() / 1000 + clockOffset;

// Draws a section again only if what it shows has changed: a selection in it survives the rest of the page.
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

export function localTimes() {
  for (const time of document.querySelectorAll("time[datetime]")) {
    time.textContent = new Date(time.dateTime).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" });
  }
}

// Where apps point their client: here, or beside it where inference has a port of its own.
export function fillEndpoints() {
  for (const place of document.querySelectorAll(".endpoint")) {
    const { port } = place.dataset;
    place.textContent = `${port ? `${location.protocol}//${location.hostname}:${port}` : location.origin}/v1`;
  }
}
