() => new Promise(done => {
    // after at most 100 frames: charts follow a new width a moment later
    let left = 100;
    const look = () => {
        const width = document.documentElement.scrollWidth;
        width <= 360 || !left-- ? done(width) : requestAnimationFrame(look);
    };
    look();
})
