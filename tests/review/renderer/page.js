// Renders Markdown as Airflow's UI does, and says what came of it.
import { createElement } from "react";
import { flushSync } from "react-dom";
import { createRoot } from "react-dom/client";
import Markdown from "react-markdown";
import remarkGfm from "remark-gfm";

const HARMLESS = new Set(
  "A BLOCKQUOTE BR CODE DEL DIV EM H1 H2 H3 H4 H5 H6 HR LI OL P PRE SECTION STRONG SUP TABLE TBODY TD TH THEAD TR UL".split(" "),
);

function acting(element) {
  const isBox = element.matches("input[type=checkbox][disabled]");
  const script = [...element.attributes].some((each) => each.name.startsWith("on"));
  const link = element.tagName === "A" && /^\s*(javascript|data|vbscript):/i.test(element.getAttribute("href") ?? "");
  return script || link || !(HARMLESS.has(element.tagName) || isBox);
}

window.render = (texts) =>
  texts.map((text) => {
    const place = document.body.appendChild(document.createElement("div"));
    const root = createRoot(place);
    flushSync(() => root.render(createElement(Markdown, { remarkPlugins: [remarkGfm] }, text)));
    const found = [...place.querySelectorAll("*")].filter(acting).map((each) => each.outerHTML);
    const shown = { acting: found, text: place.innerText };
    root.unmount();
    place.remove();
    return shown;
  });
