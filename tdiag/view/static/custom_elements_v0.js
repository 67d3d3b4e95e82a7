"use strict";
// What the Trace view of torch-tb-profiler needs and no browser has any more: Custom Elements v0
// (https://www.w3.org/TR/2016/WD-custom-elements-20160226/) and a little of Shadow DOM v0. That page
// is made with Polymer 1, which takes this script for a polyfill: it asks for `upgrade` and
// `takeRecords`, and does most of Shadow DOM itself.
// It differs from the specification in this: elements that the parser or innerHTML made are
// upgraded, and attachedCallback and detachedCallback are called, in the microtask after the change
// and not within it; and an element that was only moved gets neither callback.

(() => {
const definitions = new Map(); // name → prototype; of an extended tag, `tag is=name`
const attached = new WeakSet();
const ROOTS = { childList: true, subtree: true };
const { createElement, importNode } = Document.prototype;
const { cloneNode } = Node.prototype;

const key = (tag, is) => (is ? `${tag} is=${is}` : tag);

/** What a callback throws is reported, as of an event's listener; the caller goes on. */
function call(element, callback, ...words) {
  try {
    element[callback]?.(...words);
  } catch (error) {
    reportError(error);
  }
}

/** Every element of a tree, in the tree's order; callbacks may then change the tree. */
function elements(node) {
  const below = node.querySelectorAll ? [...node.querySelectorAll("*")] : [];
  return node instanceof Element ? [node, ...below] : below;
}

function upgradeOne(element) {
  if (element.__upgraded__) return; // Polymer reads this name
  const prototype = definitions.get(key(element.localName, element.getAttribute("is")))
    ?? definitions.get(element.localName);
  if (!prototype) return;
  element.__upgraded__ = true;
  Object.setPrototypeOf(element, prototype);
  call(element, "createdCallback");
}

function upgrade(node) {
  elements(node).forEach(upgradeOne);
  return node;
}

/** Upgrade a tree, and call those of its elements that came into the document or left it. */
function settle(node) {
  for (const element of elements(node)) {
    upgradeOne(element);
    if (!element.__upgraded__ || element.isConnected === attached.has(element)) continue;
    if (element.isConnected) attached.add(element);
    else attached.delete(element);
    call(element, element.isConnected ? "attachedCallback" : "detachedCallback");
  }
}

function changed(records) {
  for (const { addedNodes, removedNodes } of records) {
    removedNodes.forEach(settle);
    addedNodes.forEach(settle);
  }
}

const observer = new MutationObserver(changed);
observer.observe(document, ROOTS);

document.registerElement = (name, options = {}) => {
  const { prototype = Object.create(HTMLElement.prototype), extends: tag } = options;
  function constructor() {
    return document.createElement(tag ?? name, tag && name);
  }
  constructor.prototype = prototype;
  Object.defineProperty(prototype, "constructor",
    { value: constructor, configurable: true, writable: true });
  definitions.set(tag ? key(tag, name) : name, prototype);
  document.querySelectorAll(tag ? `${tag}[is="${name}"]` : name).forEach(settle);
  return constructor;
};

Document.prototype.createElement = function (tag, is) {
  // tr.ui.b.Overlay has the prototype of a <div>; only a real one can have a shadow root today.
  const element = createElement.call(this, tag === "overlay" ? "div" : tag);
  if (typeof is === "string") element.setAttribute("is", is);
  if (this === document) upgradeOne(element);
  return element;
};
Document.prototype.importNode = function (node, deep) {
  return upgrade(importNode.call(this, node, deep));
};
Node.prototype.cloneNode = function (deep) {
  const copy = cloneNode.call(this, deep);
  return this.ownerDocument === document ? upgrade(copy) : copy; // a template's content stays inert
};

for (const name of ["setAttribute", "removeAttribute"]) {
  const original = Element.prototype[name];
  Element.prototype[name] = function (attribute, ...value) {
    const before = this.getAttribute(attribute);
    original.call(this, attribute, ...value);
    const after = this.getAttribute(attribute);
    if (this.__upgraded__ && (before !== null || after !== null)) {
      call(this, "attributeChangedCallback", attribute.toLowerCase(), before, after);
    }
  };
}

/** Of Shadow DOM v0: a root, whose <content> takes all children of the host, and an event's path. */
Element.prototype.createShadowRoot = function () {
  const root = this.attachShadow({ mode: "open" });
  new MutationObserver(() => {
    for (const content of root.querySelectorAll("content")) {
      content.replaceWith(createElement.call(document, "slot"));
    }
  }).observe(root, ROOTS);
  return root;
};

Object.defineProperty(Event.prototype, "path", {
  configurable: true,
  get() { return this.composedPath(); },
});
window.wrap = window.unwrap = (node) => node; // a polyfill of Shadow DOM has nodes of its own

window.CustomElements = {
  useNative: false,
  hasNative: false,
  upgrade,
  takeRecords: () => changed(observer.takeRecords()),
  instanceof: (object, constructor) => object instanceof constructor,
};
Object.defineProperty(Document.prototype, "_currentScript", { // a polyfill's name for it
  get() { return this.currentScript; },
});
document.addEventListener("DOMContentLoaded", () => {
  document.dispatchEvent(new CustomEvent("WebComponentsReady", { bubbles: true }));
});
})();
