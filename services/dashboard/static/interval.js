// A difference with its interval, as a small bar around 0 on which the margin is marked.

import { shape } from "./svg.js";

const HEIGHT = 26;
const ROOM = 1.15;
const middle = (share) => `${(50 + 50 * share).toFixed(2)}%`;

// The smallest range around 0 that shows the difference, its bounds and the margin.
function reach({ difference, low, high, margin }) {
  return ROOM * Math.max(1e-9, ...[difference, low, high, margin].map((value) => Math.abs(value ?? 0)));
}

// better: "higher" (the margin lies below 0), "lower" (above), "same" (on both sides).
export function intervalBar(metric, label) {
  const span = reach(metric);
  const at = (value) => middle(Math.max(-1, Math.min(1, value / span)));
  const line = (value, name) => shape("line", { x1: at(value), x2: at(value), y1: 3, y2: HEIGHT - 3, class: name });
  const margins = { higher: [-1], lower: [1], same: [-1, 1] }[metric.better] ?? [-1];
  const parts = [line(0, "zero"), ...(metric.margin == null ? [] : margins.map((side) => line(side * metric.margin, "margin")))];
  if (metric.low != null || metric.high != null) {
    // One-sided: the other side is open.
    const [from, to] = [metric.low ?? -span, metric.high ?? span];
    const width = 50 * (Math.min(1, to / span) - Math.max(-1, from / span));
    parts.push(shape("rect", { x: at(from), y: HEIGHT / 2 - 4, width: `${Math.max(0.5, width).toFixed(2)}%`, height: 8, rx: 4, class: "range" }));
  }
  if (metric.difference != null) parts.push(shape("circle", { cx: at(metric.difference), cy: HEIGHT / 2, r: 5, class: "point" }));
  return shape("svg", { class: `interval ${metric.verdict ?? ""}`, height: HEIGHT, role: "img", "aria-label": label }, ...parts);
}
