from zoo.adapters.protocols import Adapter as Adapter
from zoo.check.checker import check as check
from zoo.check.checker import properties as properties
from zoo.check.finding import ConformanceError as ConformanceError
from zoo.check.finding import Finding as Finding
from zoo.check.finding import Report as Report
from zoo.check.property import Property as Property
from zoo.check.subject import Subject as Subject
