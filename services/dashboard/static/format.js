// Numbers as people read them. Every figure that has a unit shows it.

const whole = new Intl.NumberFormat("en-GB");

export const count = (value) => (value == null ? "–" : whole.format(value));

export const percent = (share, digits = 1) => (share == null ? "–" : `${(share * 100).toFixed(digits)} %`);

export function figure(value, digits = 3) {
  if (value == null) return "–";
  const size = Math.abs(value);
  return size !== 0 && (size < 0.001 || size >= 10000) ? value.toExponential(1) : value.toFixed(size >= 100 ? 0 : digits);
}

export function bytes(value) {
  if (value == null) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  const power = Math.min(units.length - 1, Math.max(0, Math.floor(Math.log10(Math.max(value, 1)) / 3)));
  return `${(value / 1000 ** power).toFixed(power ? 1 : 0)} ${units[power]}`;
}

export function seconds(value) {
  if (value == null) return "–";
  if (value < 0.1) return `${(value * 1000).toFixed(0)} ms`;
  if (value < 10) return `${value.toFixed(1)} s`;
  if (value < 120) return `${value.toFixed(0)} s`;
  if (value < 7200) return `${(value / 60).toFixed(0)} min`;
  if (value < 172800) return `${(value / 3600).toFixed(0)} h`;
  return `${(value / 86400).toFixed(0)} d`;
}

export const clock = (at) => (at == null ? "–" : new Date(at * 1000).toLocaleTimeString("en-GB"));

export const version = (number) => (number == null ? "none" : number < 0 ? "no version" : `v${number}`);

export const words = (name) => name.replaceAll("_", " ");
