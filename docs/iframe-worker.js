// Browsers start no worker on pages of file://. There the worker of the search runs in a frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = "<!doctype html>";
      this.window = new Promise((resolve) => {
        frame.onload = () => {
          const { contentWindow, contentDocument } = frame;
          contentWindow.postMessage = (data) =>
            this.dispatchEvent(new MessageEvent("message", { data }));
          const script = contentDocument.createElement("script");
          script.src = url;
          script.onload = () => resolve(contentWindow);
          contentDocument.head.append(script);
        };
      });
      document.body.append(frame);
    }

    async postMessage(data) {
      (await this.window).dispatchEvent(new MessageEvent("message", { data }));
    }
  };
}
