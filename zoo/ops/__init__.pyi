from zoo.ops.scan import selective_scan as selective_scan
