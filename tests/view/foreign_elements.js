() => ({
    hacked: window.hacked, refused: window.refused, title: document.title,
    scripts: [...document.scripts].filter(s => s.type !== 'application/json' && !s.src.startsWith(location.origin + '/static/')).length,
    elements: document.querySelectorAll('main img, main iframe, main object, main embed, main base, main meta, main link, main style, main b b').length,
    handlers: [...document.querySelectorAll('*')].filter(e => [...e.attributes].some(a => a.name.startsWith('on'))).length,
    links: [...document.links].filter(a => !a.href.startsWith(location.origin)).map(a => a.href),
    forms: [...document.forms].filter(f => f.action && !f.action.startsWith(location.origin)).length,
})
