"""The stand-in as SGLang."""

from standin.launched import main

if __name__ == "__main__":
    main("sglang")
