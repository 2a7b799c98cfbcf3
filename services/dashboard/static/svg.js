// Shapes. Text enters as text nodes.

const SVG = "http://www.w3.org/2000/svg";

export function shape(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export const text = (x, y, className, content) => shape("text", { x, y, class: className, "text-anchor": "middle" }, content);
