// The document is built from elements and text alone: no string ever becomes markup, whoever wrote it.

/** An element: attributes by name, "class" too; children are elements or texts. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== null) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export const at = (id) => document.getElementById(id);

/** Changes a text only where it is another: a selection, and a screen reader's place, survive. */
export function write(element, text) {
  const told = String(text);
  if (element.textContent !== told) element.textContent = told;
}

/** Makes a parent's children those of `items`, in order; what is there stays, so focus does too. */
export function keep(parent, items, key, create, update) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let before = null;
  for (const item of items) {
    const name = String(key(item));
    let child = known.get(name);
    if (child) known.delete(name);
    else {
      child = create(item);
      child.dataset.key = name;
    }
    update(child, item);
    const place = before ? before.nextElementSibling : parent.firstElementChild;
    if (place !== child) parent.insertBefore(child, place);
    before = child;
  }
  for (const child of known.values()) child.remove();
}
