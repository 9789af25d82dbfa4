// Make one piece of the page like another by changing only what differs, so that focus, selection,
// scrolling, opened panels and what was typed stay.
//
// Rule 1: attributes in OWN belong to the person or to a script; the server's are not looked at.
// Rule 2: children with data-key are the same if their keys are; others if they stand at the same
//         place, are of the same kind and have the same id.
// Rule 3: the children of data-keep are never touched.
// Rule 4: a table that a person sorted keeps its order; table.js puts new rows in their place.

const OWN = new Set([
  "open", "hidden", "disabled", "aria-sort", "tabindex", "role",
  "aria-valuenow", "aria-valuetext", "aria-valuemin", "aria-valuemax", "data-sorted",
]);

export function morph(old, fresh) {
  patchAttributes(old, fresh);
  if (old.hasAttribute("data-keep")) return;
  if (isKeyed(old) || isKeyed(fresh)) patchKeyed(old, fresh);
  else patchInOrder(old, fresh);
}

function patchAttributes(old, fresh) {
  // The value of a field is what was typed, unless nobody can type into it.
  const typed = old.nodeName === "INPUT" && old.type !== "hidden";
  const own = (name) => OWN.has(name) || (typed && name === "value");
  for (const { name, value } of fresh.attributes) {
    if (!own(name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  if (old.attributes.length === fresh.attributes.length) return;
  for (const { name } of [...old.attributes]) {
    if (!own(name) && !fresh.hasAttribute(name)) old.removeAttribute(name);
  }
}

function isKeyed(element) {
  const first = element.firstElementChild;
  return first !== null && first.hasAttribute("data-key");
}

function patchKeyed(old, fresh) {
  const known = new Map();
  for (const child of [...old.children]) {
    if (child.hasAttribute("data-key")) known.set(child.getAttribute("data-key"), child);
    else child.remove();
  }
  const sorted = old.closest("table")?.hasAttribute("data-sorted") ?? false;
  let place = old.firstElementChild;
  for (const wanted of [...fresh.children]) {
    const key = wanted.getAttribute("data-key");
    let child = known.get(key);
    if (child === undefined) {
      child = document.importNode(wanted, true);
      old.insertBefore(child, sorted ? null : place);
      continue;
    }
    known.delete(key);
    // Most rows of a long table are as they were, and asking costs less than looking.
    if (!child.isEqualNode(wanted)) morph(child, wanted);
    if (sorted) continue;
    if (child === place) place = place.nextElementSibling;
    else move(old, child, place);
  }
  for (const child of known.values()) child.remove();
}

// Moving an element the usual way takes the focus from it.
export function move(parent, child, place) {
  if (parent.moveBefore !== undefined) {
    parent.moveBefore(child, place);
    return;
  }
  const focused = child.contains(document.activeElement) ? document.activeElement : null;
  parent.insertBefore(child, place);
  focused?.focus({ preventScroll: true });
}

function patchInOrder(old, fresh) {
  const wanted = [...fresh.childNodes];
  for (let at = 0; at < wanted.length; at += 1) {
    const now = old.childNodes[at];
    const next = wanted[at];
    if (now === undefined) old.appendChild(document.importNode(next, true));
    else if (!isSame(now, next)) now.replaceWith(document.importNode(next, true));
    else if (now.nodeType === Node.ELEMENT_NODE) morph(now, next);
    else if (now.data !== next.data) now.data = next.data;
  }
  while (old.childNodes.length > wanted.length) old.lastChild.remove();
}

function isSame(one, other) {
  if (one.nodeType !== other.nodeType || one.nodeName !== other.nodeName) return false;
  return one.nodeType !== Node.ELEMENT_NODE || (one.id === other.id && keyOf(one) === keyOf(other));
}

function keyOf(element) {
  return element.getAttribute("data-key");
}
