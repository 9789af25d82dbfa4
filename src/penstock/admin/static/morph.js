// Make one piece of the page like another by changing only what differs, so that focus, selection,
// scrolling, opened panels and what was typed stay.
//
// Rule 1: attributes in OWN belong to the person or to a script; the server's are not looked at.
// Rule 2: children with data-key are the same if their keys are; others if they stand in the same
//         order and have the same name, id and first class.  What comes or goes between them moves
//         them, and changes nothing else.
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
      old.insertBefore(document.importNode(next, true), now ?? null); // something new
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

// Space between the lines of a template comes and goes with what stands on them.
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

// The first class says what an element is, the others how it is.
function kindOf(element) {
  return element.classList[0];
}
