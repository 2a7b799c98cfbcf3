// A tenant's own page: follows the stream of its states.

import { drawOverview } from "./overview.js";
import { followLoop, makeRefresh } from "./page.js";

const refresh = makeRefresh();
followLoop((state) => drawOverview(state, refresh));
