// Light or dark, by the button or by the system.  This script runs before the page is drawn, so
// that a dark page never flashes white.

(() => {
  const CHOICES = ["auto", "light", "dark"];
  const KEY = "penstock-theme";
  const root = document.documentElement;

  const kept = () => {
    try {
      const value = localStorage.getItem(KEY);
      return CHOICES.includes(value) ? value : "auto";
    } catch {
      return "auto"; // storage may be disabled
    }
  };

  const apply = (choice) => {
    if (choice === "auto") root.removeAttribute("data-theme");
    else root.setAttribute("data-theme", choice);
  };

  let choice = kept();
  root.classList.add("js");
  apply(choice);

  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const name = () => button.setAttribute("aria-label", `Theme: ${choice}`);
    button.hidden = false;
    name();
    button.addEventListener("click", () => {
      choice = CHOICES[(CHOICES.indexOf(choice) + 1) % CHOICES.length];
      apply(choice);
      name();
      try {
        localStorage.setItem(KEY, choice);
      } catch {
        // then it applies to this page only
      }
    });
  });
})();
