async ([address, steps, runs, limit]) => {
  for (;;) {
    const found = Object.values(await (await fetch(address)).json());
    if (found.filter((run) => run.counted >= steps).length >= runs) return;
    if (performance.now() > limit) throw new Error(`the counts did not come: ${JSON.stringify(found)}`);
    await new Promise((done) => setTimeout(done, 50));
  }
}
