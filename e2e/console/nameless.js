// Controls that a screen reader cannot name, or would name twice: a list of sentences and elements.
() => {
  const nameOf = (element) => {
    const by = element.getAttribute("aria-labelledby");
    const labels = [...(element.labels ?? [])].map((label) => label.textContent);
    const own = element.tagName === "INPUT" ? "" : element.textContent;
    const names = [element.getAttribute("aria-label"), by && document.getElementById(by)?.textContent, ...labels, own];
    return names.filter(Boolean).join(" ").trim();
  };
  const controls = "a, button, input, select, textarea, dialog, [tabindex='0'], [role=img], svg[role]";
  const shown = [...document.querySelectorAll(controls)].filter((each) => each.checkVisibility());
  const problems = shown.filter((each) => !nameOf(each)).map((each) => each.outerHTML.slice(0, 200));
  const ids = [...document.querySelectorAll("[id]")].map((each) => each.id);
  problems.push(...ids.filter((id, at) => ids.indexOf(id) !== at).map((id) => `two elements have the id ${id}`));
  if (document.querySelectorAll("main h1").length !== 1) problems.push("there is not one h1");
  for (const table of document.querySelectorAll("table")) {
    const isComplete = table.caption?.textContent && !table.querySelector("thead th:not([scope])");
    if (!isComplete) problems.push("a table has no caption or scope");
  }
  if (!document.documentElement.lang || !document.title) problems.push("the page has no language or title");
  return problems;
}
