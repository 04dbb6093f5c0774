"""The report as one HTML file that needs nothing else: no network, no framework, readable without its script."""

from disc_tf.report_html.page import bench_page, report_page, saved_model_page, standalone_page, verify_page

__all__ = ["bench_page", "report_page", "saved_model_page", "standalone_page", "verify_page"]
