package delaymq.driver;

import com.alibaba.fastjson.JSONObject;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.Set;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.rocketmq.common.protocol.body.ConsumerRunningInfo;
import org.apache.rocketmq.tools.monitor.DeleteMsgsEvent;
import org.apache.rocketmq.tools.monitor.FailedMsgs;
import org.apache.rocketmq.tools.monitor.MonitorConfig;
import org.apache.rocketmq.tools.monitor.MonitorListener;
import org.apache.rocketmq.tools.monitor.MonitorService;
import org.apache.rocketmq.tools.monitor.UndoneMsgs;

/** One round of mqadmin startMonitoring, which runs every minute, with its reports as result. */
final class Monitoring {
    Object round(JSONObject request) throws Exception {
        Reports reports = new Reports();
        MonitorConfig config = new MonitorConfig();
        config.setNamesrvAddr(request.getString("namesrv"));
        MonitorService service = new MonitorService(config, reports, null);
        service.start();
        try {
            service.doMonitorWork();
        } finally {
            service.shutdown();
        }
        return Map.of("undone", AdminCalls.plain(reports.undone), "running", reports.running);
    }

    private static final class Reports implements MonitorListener {
        private final List<UndoneMsgs> undone = new CopyOnWriteArrayList<>();
        private final Set<String> running = new TreeSet<>();

        @Override
        public void beginRound() {}

        @Override
        public void reportUndoneMsgs(UndoneMsgs messages) {
            undone.add(messages);
        }

        @Override
        public void reportFailedMsgs(FailedMsgs messages) {}

        @Override
        public void reportDeleteMsgsEvent(DeleteMsgsEvent event) {}

        @Override
        public void reportConsumerRunningInfo(TreeMap<String, ConsumerRunningInfo> infos) {
            infos.values().forEach(info -> info.getSubscriptionSet().stream()
                .map(subscription -> subscription.getTopic())
                .filter(topic -> topic.startsWith("%RETRY%"))
                .forEach(topic -> running.add(topic.substring("%RETRY%".length()))));
        }

        @Override
        public void endRound() {}
    }
}
