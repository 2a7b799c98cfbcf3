// The texts of a page whose contrast is below WCAG AA, as "ratio colour on colour: text"; disabled buttons are exempt.
(() => {
  const parse = (text) => {
    const [red, green, blue, alpha = 1] = text.match(/[\d.]+(e-\d+)?/g).map(Number);
    const scale = text.startsWith("color(") ? 1 : 255;
    return [red / scale, green / scale, blue / scale, alpha];
  };
  const over = (above, below) => above.slice(0, 3).map((part, i) => part * above[3] + below[i] * (1 - above[3]));
  const luminance = (colour) => {
    const [red, green, blue] = colour.map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const surface = (element) => {
    if (!element) return [1, 1, 1];
    return over(parse(getComputedStyle(element).backgroundColor), surface(element.parentElement));
  };
  const shown = (colour) => `rgb(${colour.map((part) => Math.round(part * 255))})`;
  const found = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const text = walker.currentNode.textContent.trim();
    const box = element.getBoundingClientRect();
    if (!text || box.width < 2 || !element.checkVisibility({ visibilityProperty: true }) || element.closest(":disabled, script")) continue;
    const style = getComputedStyle(element);
    const below = surface(element);
    const ink = parse(element instanceof SVGElement ? style.fill : style.color);
    for (let at = element; at; at = at.parentElement) ink[3] *= Number(getComputedStyle(at).opacity);
    const colour = over(ink, below);
    const [dark, light] = [luminance(colour), luminance(below)].sort((a, b) => a - b);
    const ratio = (light + 0.05) / (dark + 0.05);
    const size = parseFloat(style.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (isLarge ? 3 : 4.5)) found.add(`${ratio.toFixed(2)} ${shown(colour)} on ${shown(below)}: ${text.slice(0, 40)}`);
  }
  return [...found];
})()
