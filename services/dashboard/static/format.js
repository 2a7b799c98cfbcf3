// Numbers and times as people read them. formatting.py writes every number the same way: a browser test compares the two.

const MISSING = "–";
const whole = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0 });

export const count = (value) => (value == null ? MISSING : whole.format(value));

export const percent = (share, digits = 1) => (share == null ? MISSING : `${(share * 100).toFixed(digits)} %`);

export const points = (share) => (share == null ? MISSING : `${(share * 100).toFixed(1)} points`);

export const change = (share) => (share == null ? MISSING : `${share < 0 ? "−" : "+"}${points(Math.abs(share))}`);

export const shortChange = (share) => `${share < 0 ? "−" : share > 0 ? "+" : ""}${Math.abs(share * 100).toFixed(1)}`;

export const interval = (low, high) => (low == null && high == null ? "no interval yet" : `[${low == null ? "−∞" : shortChange(low)}, ${high == null ? "∞" : shortChange(high)}] points`);

export const times = (ratio) => `${ratio.toFixed(ratio < 10 ? 1 : 0)}×`;

export function figure(value, digits = 3) {
  if (value == null) return MISSING;
  const size = Math.abs(value);
  if (size > 0 && size < 0.001) return value.toExponential(1);
  return size >= 100 ? whole.format(value) : value.toFixed(digits);
}

export function dataSize(value) {
  if (value == null) return MISSING;
  const units = ["B", "kB", "MB", "GB", "TB"];
  const power = Math.min(units.length - 1, Math.max(0, Math.floor(Math.log10(Math.max(value, 1)) / 3)));
  return `${(value / 1000 ** power).toFixed(power ? 1 : 0)} ${units[power]}`;
}

export function seconds(value) {
  if (value == null) return MISSING;
  if (value < 0.1) return `${(value * 1000).toFixed(0)} ms`;
  if (value < 10) return `${value.toFixed(1)} s`;
  if (value < 120) return `${value.toFixed(0)} s`;
  if (value < 7200) return `${(value / 60).toFixed(0)} min`;
  if (value < 172800) return `${(value / 3600).toFixed(0)} h`;
  return `${(value / 86400).toFixed(0)} d`;
}

export const clock = (at) => (at == null ? MISSING : new Date(at * 1000).toLocaleTimeString("en-GB"));

export const moment = (at) => (at == null ? MISSING : new Date(at * 1000).toLocaleString("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" }));

export const version = (number) => (number == null ? "none" : number < 0 ? "no version" : `v${number}`);

export const words = (name) => name.replaceAll("_", " ");
