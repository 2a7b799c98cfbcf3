// The server renders the pages of answers and versions; this script shows times in the reader's time zone, and announces newer answers.

import { fillEndpoints, find, followLoop, localTimes } from "./page.js";

localTimes();
fillEndpoints();
let seen = null;
followLoop((state) => {
  seen ??= state.generations.total;
  const newer = find("newer");
  if (newer) newer.hidden = state.generations.total <= seen;
});
