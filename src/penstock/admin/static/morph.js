// Makes one part of the page equal to another by changing only what differs, so that focus,
// selection, scroll position, open panels and typed text stay.
//
// Rule 1: attributes in OWN belong to the user or to a script; the server's are ignored.
// Rule 2: children with data-key are the same if their keys are; others if they are in the same
//         order and have the same name, id and first class.  Children added or removed between
//         them move them, and change nothing else.
// Rule 3: the children of data-keep are never changed.
// Rule 4: a table that the user sorted keeps its order; table.js moves new rows to their place.

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
  // The value of a field is the user's, unless it is hidden.
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
    // Most rows of a long table are unchanged, and isEqualNode is cheaper than morph.
    if (!child.isEqualNode(wanted)) morph(child, wanted);
    if (sorted) continue;
    if (child === place) place = place.nextElementSibling;
    else move(old, child, place);
  }
  for (const child of known.values()) child.remove();
}

// insertBefore alone would take the focus from the element.
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
  const before = [...old.childNodes].filter(matters);
  const wanted = [...fresh.childNodes].filter(matters);
  let at = 0;
  for (const [place, next] of wanted.entries()) {
    const now = before[at];
    const found = now === undefined ? -1 : before.findIndex((node, i) => i >= at && isSame(node, next));
    if (found === at) {
      patch(now, next);
      at += 1;
    } else if (now === undefined || wanted.some((node, i) => i > place && isSame(now, node))) {
      old.insertBefore(document.importNode(next, true), now ?? null); // a new node
    } else if (found > at) {
      for (; at < found; at += 1) before[at].remove();
      patch(before[at], next);
      at += 1;
    } else {
      now.replaceWith(document.importNode(next, true));
      at += 1;
    }
  }
  for (; at < before.length; at += 1) before[at].remove();
}

function patch(now, next) {
  if (now.nodeType === Node.ELEMENT_NODE) morph(now, next);
  else if (now.data !== next.data) now.data = next.data;
}

// White space between a template's lines varies with their content.
function matters(node) {
  return node.nodeType !== Node.TEXT_NODE || /\S/.test(node.data) || !node.data.includes("\n");
}

function isSame(one, other) {
  if (one.nodeType !== other.nodeType || one.nodeName !== other.nodeName) return false;
  if (one.nodeType !== Node.ELEMENT_NODE) return true;
  return one.id === other.id && keyOf(one) === keyOf(other) && kindOf(one) === kindOf(other);
}

function keyOf(element) {
  return element.getAttribute("data-key");
}

// The first class is an element's kind, the others its state.
function kindOf(element) {
  return element.classList[0];
}
