// Swagger UI takes its theme from a class of the root, not from what the reader's system prefers.
const dark = matchMedia("(prefers-color-scheme: dark)");
const show = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", show);
show();
