"""A day of traffic: a real hour of a chat service, under the curve of a day.

The hour: generated tokens per second, ten seconds each, of Azure's conversation service on 2023-11-16 from 18:17 UTC on: 19,138 requests, 211 tokens
each on average (AzureLLMInferenceTrace_conv.csv, github.com/Azure/AzurePublicDataset, CC BY 4.0; Patel et al., Splitwise, ISCA 2024). It is near
a day's peak. The day: that trace has one hour only, so the curve is an assumption: one peak, 1.7 times the mean and 3.3 times the trough.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

DAY = 86_400
REQUEST_TOKENS = 211.0
"""Mean length of an answer of the hour."""
_SECONDS = 10
_MEAN_OF_PEAK, _TROUGH_OF_PEAK = 1 / 1.7, 1 / 3.3
_HOUR = (
    1447, 1265, 1479, 1047, 1040, 1404, 1410, 1003, 1425, 1777, 1414, 1217, 1551, 956, 1118, 1100, 1242, 1441, 1197,
    1500, 1345, 1572, 1782, 1552, 1889, 1242, 1542, 1072, 1390, 1245, 1000, 966, 1370, 1465, 1490, 1221, 1132, 1131,
    1721, 1439, 1112, 898, 1614, 1603, 900, 1341, 1028, 1332, 905, 1233, 1024, 1241, 1034, 1332, 1197, 1045, 1046, 1189,
    1375, 1819, 1395, 908, 1057, 1306, 1069, 1182, 1555, 1075, 1513, 1348, 906, 1667, 1077, 1257, 1245, 1087, 1365,
    1309, 977, 1250, 1032, 1726, 1690, 1241, 1317, 1262, 1530, 1257, 1558, 1167, 1047, 1188, 1470, 1125, 1489, 1396,
    1334, 1248, 1556, 1263, 1249, 1054, 1362, 1125, 1148, 1578, 1365, 1580, 1252, 1421, 1116, 830, 880, 1539, 1030, 779,
    1476, 1499, 1997, 1363, 1123, 712, 1465, 1626, 1382, 1201, 1356, 1506, 1164, 1076, 1050, 1329, 908, 1661, 1002,
    1122, 1289, 684, 1346, 1139, 891, 1168, 913, 1170, 1331, 1066, 1146, 1273, 825, 913, 1215, 1278, 1134, 1492, 1147,
    909, 1032, 1006, 907, 1416, 1520, 1285, 1228, 990, 1068, 815, 801, 1091, 873, 849, 857, 611, 979, 975, 953, 1146,
    971, 840, 1106, 824, 1305, 1326, 1036, 877, 1049, 1250, 884, 1132, 902, 1106, 963, 873, 1231, 1112, 742, 915, 758,
    1336, 996, 1154, 1156, 1171, 1387, 1268, 912, 1012, 971, 1276, 1348, 1135, 1269, 1119, 1147, 1165, 1035, 973, 759,
    853, 1379, 1058, 1415, 916, 1300, 1343, 1112, 1192, 1194, 1246, 1194, 1155, 951, 1264, 1069, 1414, 1180, 1403, 1458,
    714, 1109, 1499, 1153, 1162, 1161, 923, 896, 1490, 1111, 1090, 1299, 721, 581, 929, 1702, 1287, 1065, 892, 1051,
    1304, 768, 825, 970, 992, 1346, 1447, 1164, 1190, 1110, 1084, 1306, 1758, 1210, 1095, 1295, 870, 1158, 1065, 777,
    1612, 1328, 1439, 908, 868, 771, 1379, 1138, 536, 1059, 1173, 1381, 805, 1187, 1348, 1284, 1002, 1156, 1409, 884,
    1304, 948, 1079, 1206, 1568, 1005, 1019, 1743, 917, 920, 855, 1401, 1023, 850, 975, 1415, 999, 1246, 1063, 785,
    1409, 1210, 1257, 1215, 1181, 1160, 653, 1204, 1237, 1347, 999, 1128, 1423, 1341, 1141, 1169, 1217, 1116, 879, 883,
    1275, 1198, 1531, 1128, 345,
)  # fmt: skip


def traffic(num_services: int) -> npt.NDArray[np.float64]:
    """Tokens per second that users ask for, for each second of a day: so many such services, out of step with each other."""
    hour = np.repeat(np.array(_HOUR, dtype=np.float64), _SECONDS)
    whole = np.tile(hour, math.ceil(DAY / len(hour)) + 1)
    starts = (len(hour) * np.arange(num_services)) // num_services
    together = np.sum([whole[start : start + DAY] for start in starts], axis=0)
    return np.asarray(together * _of_peak())


def _of_peak() -> npt.NDArray[np.float64]:
    """Share of the peak for each second: a cosine from trough to peak, raised to the power that gives it its mean."""
    wave = (1 - np.cos(2 * math.pi * np.arange(DAY) / DAY)) / 2
    low, high = 0.1, 10.0
    for _ in range(50):
        power = (low + high) / 2
        mean = float(np.mean(_TROUGH_OF_PEAK + (1 - _TROUGH_OF_PEAK) * wave**power))
        low, high = (power, high) if mean > _MEAN_OF_PEAK else (low, power)
    return np.asarray(_TROUGH_OF_PEAK + (1 - _TROUGH_OF_PEAK) * wave**power)
