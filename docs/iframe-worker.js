// Lets the search work where a page is opened as a file: browsers start no worker from a file, so the worker's script
// runs in a hidden frame instead. It takes the place of the shim that the theme would fetch from another site.
"use strict";
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      this.busy = true; // with its script, then with one message: a worker answers each before it takes the next
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "search";
      document.body.append(frame);
      const inner = (this.inner = frame.contentWindow);
      inner.document.open();
      inner.document.write("<!DOCTYPE html><title>search</title>");
      inner.document.close();
      const tell = (type, init) => this.dispatchEvent(new MessageEvent(type, init));
      inner.postMessage = (data) => {
        tell("message", { data });
        this.next();
      };
      inner.importScripts = (...urls) => Promise.all(urls.map((each) => this.load(each)));
      this.load(url).then(() => this.next());
    }
    load(url) {
      return new Promise((done, failed) => {
        const script = this.inner.document.createElement("script");
        Object.assign(script, { src: url, async: false, onload: done, onerror: failed });
        this.inner.document.head.append(script);
      });
    }
    postMessage(data) {
      this.waiting.push(data);
      if (!this.busy) this.next();
    }
    next() {
      this.busy = this.waiting.length > 0;
      if (this.busy) this.inner.dispatchEvent(new this.inner.MessageEvent("message", { data: this.waiting.shift() }));
    }
    terminate() {}
  };
  window.Worker = window.IFrameWorker;
}
