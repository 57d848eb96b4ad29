// The theme of the site, as a Hugo module.
module github.com/outrider-dev/outrider/docs/site

go 1.26

require github.com/imfing/hextra v0.9.7
