// A page that is opened as a file may not start workers, which is what searches the site: a frame takes their place.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.addEventListener("load", () => this.start(frame.contentWindow, url));
      document.body.append(frame);
    }
    start(inside, url) {
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = inside.document.createElement("script");
      script.src = url;
      script.addEventListener("load", () => {
        this.inside = inside;
        this.waiting.forEach((data) => this.postMessage(data));
      });
      inside.document.body.append(script);
    }
    postMessage(data) {
      if (this.inside) this.inside.dispatchEvent(new MessageEvent("message", { data }));
      else this.waiting.push(data);
    }
  };
}
