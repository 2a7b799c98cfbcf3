// The tree of versions: time runs to the right. The live version, its ancestors and its descendants share the first lane;
// every other branch is below.

import { percent, version } from "./format.js";
import { shape, text } from "./svg.js";

const [STEP, LANE, LEFT, TOP, RADIUS] = [58, 46, 30, 26, 9];

// Version to lane. A branch takes the first lane that is free from its parent on.
export function lanes(versions, live) {
  const parents = new Map(versions.map((row) => [row.version, row.parent]));
  const line = (tip) => {
    const passed = new Set();
    for (let at = tip; at != null && !passed.has(at); at = parents.get(at)) passed.add(at);
    return passed;
  };
  const open = versions.filter((row) => !["refused", "rolled back", "revoked"].includes(row.status) && (live == null || line(row.version).has(live)));
  const trunk = line(open.at(-1)?.version ?? live);
  const placed = new Map();
  const ends = [];
  for (const row of versions) {
    if (trunk.has(row.version)) {
      placed.set(row.version, 0);
      continue;
    }
    const parentLane = placed.get(row.parent);
    let lane = parentLane > 0 && ends[parentLane] === row.parent ? parentLane : 1;
    while (lane !== parentLane && ends[lane] != null && ends[lane] >= (row.parent ?? 0)) lane += 1;
    placed.set(row.version, lane);
    ends[lane] = row.version;
  }
  return placed;
}

function node(row, x, y) {
  const name = row.status.replace(" ", "-");
  const mark = row.status === "refused" ? [shape("path", { d: `M${x - 4} ${y - 4} L${x + 4} ${y + 4} M${x + 4} ${y - 4} L${x - 4} ${y + 4}`, class: "cross" })] : [];
  const ring = row.status === "live" ? [shape("circle", { cx: x, cy: y, r: RADIUS + 4, class: "ring" })] : [];
  const said = [version(row.version), row.status, row.accuracy == null ? "" : `accuracy ${percent(row.accuracy)}`].filter(Boolean).join(", ");
  return shape(
    "a", { href: `/policies/${row.version}`, class: `node ${name}`, "aria-label": said },
    shape("title", {}, said),
    ...ring,
    shape("circle", { cx: x, cy: y, r: RADIUS }),
    ...mark,
    text(x, y + 27, "label", version(row.version)),
  );
}

// newest: versions, newest first
export function drawTree(container, newest, live) {
  const versions = [...newest].reverse();
  const lane = lanes(versions, live);
  const place = new Map(versions.map((row, index) => [row.version, [LEFT + index * STEP, TOP + lane.get(row.version) * LANE]]));
  const [width, height] = [LEFT * 2 + Math.max(0, versions.length - 1) * STEP, TOP + 36 + Math.max(0, ...lane.values()) * LANE];
  const edges = versions
    .filter((row) => place.has(row.parent))
    .map((row) => {
      const [[x1, y1], [x2, y2]] = [place.get(row.parent), place.get(row.version)];
      const turn = x1 + STEP / 2;
      return shape("path", { class: "branch", d: y1 === y2 ? `M${x1} ${y1} H${x2}` : `M${x1} ${y1} C${turn} ${y1} ${turn} ${y2} ${Math.min(x1 + STEP, x2)} ${y2} H${x2}` });
    });
  const wasAtEnd = !container.firstChild || container.scrollLeft + container.clientWidth >= container.scrollWidth - 4;
  const nodes = versions.map((row) => node(row, ...place.get(row.version)));
  container.replaceChildren(shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "list", "aria-label": "versions" }, ...edges, ...nodes));
  if (wasAtEnd) container.scrollLeft = container.scrollWidth;
}
