module github.com/outrider-dev/outrider/lab

go 1.26
