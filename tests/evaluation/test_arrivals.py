"""Growth events against the timetable of a stream."""

from metagrove import Functions, Stream
from metagrove.evaluation.arrivals import detections

STREAM = Stream(Functions(), ("0: sinusoid line", "1/4: quadratic cubic", "1/2: sinusoid line", "3/4: *"))


def test_the_first_events_of_an_arrival_notice_it_and_all_others_are_false_alarms():
    found = detections([50, 120, 160, 180, 230, 320], STREAM, 400)
    assert [(one.step, one.families, one.noticed_at) for one in found.arrivals] == [(100, ["quadratic", "cubic"], 120)]
    assert found.false_alarms == [50, 180, 230, 320]  # before any arrival, a third one, and returns


def test_an_arrival_may_go_unnoticed():
    found = detections([], STREAM, 400)
    assert found.arrivals[0].noticed_at is None
    assert not found.false_alarms
