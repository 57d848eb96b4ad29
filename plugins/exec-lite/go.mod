module github.com/outrider-dev/outrider/plugins/exec-lite

go 1.26

require github.com/outrider-dev/outrider/internal/core v0.0.0

replace github.com/outrider-dev/outrider/internal/core => ../../internal/core
