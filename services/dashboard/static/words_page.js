// The pages of answers and versions come whole from the server; this adds the reader's own times and word of newer answers.

import { fillEndpoints, find, followLoop, localTimes } from "./page.js";

localTimes();
fillEndpoints();
let seen = null;
followLoop((state) => {
  seen ??= state.generations.total;
  const newer = find("newer");
  if (newer) newer.hidden = state.generations.total <= seen;
});
