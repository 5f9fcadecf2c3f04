/* A word of code, such as --config.rounds=20, is not broken at a hyphen: in the text, and in commands that are wrapped. */
for (const code of document.querySelectorAll(".md-typeset :not(pre) > code, .language-bash code")) {
  const texts = document.createTreeWalker(code, NodeFilter.SHOW_TEXT), found = [];
  while (texts.nextNode()) found.push(texts.currentNode);
  for (const text of found) {
    const parts = text.data.split(/(\s+)/).filter(Boolean).map(part => {
      const word = document.createElement("span");
      word.className = "word";
      word.textContent = part;
      return part.trim() ? word : part;
    });
    text.replaceWith(...parts);
  }
}
