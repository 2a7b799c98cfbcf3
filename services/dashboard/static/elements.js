// Small helpers over the DOM. Text from people or models only ever enters as text.

export function element(tag, options = {}, ...children) {
  const made = document.createElement(tag);
  if (options.className) made.className = options.className;
  if (options.title) made.title = options.title;
  for (const [name, value] of Object.entries(options.data ?? {})) made.dataset[name] = value;
  made.append(...children.map((child) => (child instanceof Node ? child : document.createTextNode(String(child)))));
  return made;
}

// A table whose rows become cards on a narrow screen: each cell carries the name of its column.
export function fillTable(table, columns, rows) {
  const heads = columns.map((column) => {
    const head = element("th", { className: column.number ? "number" : "" }, column.name);
    head.scope = "col";
    return head;
  });
  table.tHead.replaceChildren(element("tr", {}, ...heads));
  table.tBodies[0].replaceChildren(
    ...rows.map((row) =>
      element(
        "tr",
        { className: row.className ?? "" },
        ...columns.map((column) => {
          const cell = element("td", { className: column.number ? "number" : (column.className ?? ""), data: { label: column.name } });
          cell.append(column.cell(row));
          return cell;
        }),
      ),
    ),
  );
}
